"""The engine: groups of sub-environments, the arrays they write, and the fleet that holds them."""
