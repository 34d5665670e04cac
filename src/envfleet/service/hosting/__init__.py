"""The fleets that a service holds: making and calling them, keeping them in memory, bringing them back."""
