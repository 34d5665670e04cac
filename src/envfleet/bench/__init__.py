"""Measurements: fleets against other libraries (`bench`), the fastest fleet (`tune`), slow parts (`doctor`)."""
