"""envfleet: many Gymnasium environments as one, wherever they run.

>>> import envfleet
>>> with envfleet.make("CartPole-v1", num_envs=4, backend="serial") as fleet:
...     observations, infos = fleet.reset(seed=0)
...     observations.shape
(4, 4)
"""

from importlib.metadata import version

from gymnasium.vector import AutoresetMode

from envfleet import errors
from envfleet.core.fleet import Fleet
from envfleet.core.sending import Batch
from envfleet.core.stats import FleetStats, Plan, WorkerStats
from envfleet.envs.registration import register_all as _register_all
from envfleet.make import connect, make

__version__ = version("envfleet")

_register_all()

__all__ = [
    "AutoresetMode",
    "Batch",
    "Fleet",
    "FleetStats",
    "Plan",
    "WorkerStats",
    "__version__",
    "connect",
    "errors",
    "make",
]
