"""`Fleet`, one facade for all backends, and `Engine`, the interface that each backend implements (see `engine.py`)."""
