"""Measuring: fleets against their peers (`bench`), the fastest fleet (`tune`), what is slow (`doctor`)."""
