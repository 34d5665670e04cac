"""Who may call a service, and how much."""
