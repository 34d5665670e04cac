"""The import name of the hockey pipeline whose configuration files envfleet reads."""
