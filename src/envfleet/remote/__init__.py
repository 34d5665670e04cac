"""Fleets that live behind a service: the engine of its client."""
