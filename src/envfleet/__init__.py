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
from envfleet.envs.registration import register_all as _register_all
from envfleet.evaluation import EvaluationResult, evaluate
from envfleet.fleet.engine import Batch
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.stats import FleetStats, Plan
from envfleet.make import adopt, connect, make
from envfleet.recording import Recording, record

__version__ = version("envfleet")

_register_all()

__all__ = [
    "AutoresetMode",
    "Batch",
    "EvaluationResult",
    "Fleet",
    "FleetStats",
    "Plan",
    "Recording",
    "__version__",
    "adopt",
    "connect",
    "errors",
    "evaluate",
    "make",
    "record",
]
