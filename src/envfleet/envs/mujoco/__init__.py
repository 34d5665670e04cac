"""Gymnasium's MuJoCo tasks, equal to the originals in every bit."""
