"""Import name of the older hockey pipeline; envfleet reads its configuration files."""
