"""What programs may ask of a service: the fleet protocol, the episode protocol, administration."""
