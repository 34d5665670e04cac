"""The import name of the repository that compared `vec` and `packed_vec` first."""
