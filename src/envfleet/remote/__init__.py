"""Fleets that live behind a service, and what a person is told of them."""
