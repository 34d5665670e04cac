"""The only fleet: a facade written once over engines that carry out requests; see `engine.py` for the seam."""
