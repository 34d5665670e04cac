"""The database of a service: its tables, what is written and read, and scores."""
