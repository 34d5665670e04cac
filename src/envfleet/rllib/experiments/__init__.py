"""The work behind `envfleet rllib`: training by either way, comparing them, evaluating, drawing."""
