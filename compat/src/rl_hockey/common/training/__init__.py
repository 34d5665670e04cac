"""Training by a configuration file."""
