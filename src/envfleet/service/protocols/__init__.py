"""HTTP interfaces of the service: the fleet protocol, the episode protocol, administration."""
