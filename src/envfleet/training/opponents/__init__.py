"""Opponents of the learner: sources, matchmaking, and the pool of snapshots."""
