"""Training, and games side by side."""
