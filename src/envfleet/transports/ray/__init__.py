"""The Ray backend: Ray places the workers, and data goes the shortest way to each. Imported only when it is used."""
