"""MuJoCo tasks: rewards, ends and observations in scalar Python, physics in MuJoCo's own thread pool."""

from envfleet.native.fields import array
from envfleet.physics.task import Task

__all__ = ["Task", "array"]
