"""Environments that come with envfleet."""
