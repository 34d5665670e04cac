"""Configuration of a run: a JSON file, checked as a whole before anything starts."""

from envfleet.errors import MissingDependency

try:
    import pydantic as _pydantic  # noqa: F401  # so that what is missing is said once, and how to get it
except ImportError as error:
    raise MissingDependency("training needs pydantic, which is not installed: pip install 'envfleet[train]'") from error

from envfleet.training.config.opponents import (
    Matchmaking,
    MixedOpponent,
    NoOpponent,
    Opponent,
    SelfPlayOpponent,
    Single,
    SnapshotOpponent,
    StrongOpponent,
    WeakOpponent,
    shares_of,
)
from envfleet.training.config.phases import (
    HOCKEY,
    Curriculum,
    Environment,
    Phase,
    Promotion,
    RewardBonus,
    RewardShaping,
    WeightedMode,
)
from envfleet.training.config.reading import (
    find_config,
    json_schema,
    parse_config,
    read_config,
    recorded_config,
    shipped_names,
)
from envfleet.training.config.run import AgentSection, Hyperparameters, Pool, RunConfig, Training

__all__ = [
    "HOCKEY",
    "AgentSection",
    "Curriculum",
    "Environment",
    "Hyperparameters",
    "Matchmaking",
    "MixedOpponent",
    "NoOpponent",
    "Opponent",
    "Phase",
    "Pool",
    "Promotion",
    "RewardBonus",
    "RewardShaping",
    "RunConfig",
    "SelfPlayOpponent",
    "Single",
    "SnapshotOpponent",
    "StrongOpponent",
    "Training",
    "WeakOpponent",
    "WeightedMode",
    "find_config",
    "json_schema",
    "parse_config",
    "read_config",
    "recorded_config",
    "shares_of",
    "shipped_names",
]
