"""What `envfleet rllib` does: training by either way, comparing them, evaluating, drawing."""
