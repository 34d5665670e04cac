"""How a fleet is made: what a person gives becomes builders, a plan, and running workers."""
