"""Configuration of a run: a JSON file, checked as a whole before anything starts."""

from envfleet.errors import MissingDependency

try:
    import pydantic as _pydantic  # noqa: F401  # so that what is missing is said once, and how to get it
except ImportError as error:
    raise MissingDependency("training needs pydantic, which is not installed: pip install 'envfleet[train]'") from error

from envfleet.training.config.phases import Phase
from envfleet.training.config.reading import (
    agent_config,
    find_config,
    json_schema,
    parse_config,
    read_config,
    shipped_names,
)
from envfleet.training.config.run import RunConfig

__all__ = [
    "Phase",
    "RunConfig",
    "agent_config",
    "find_config",
    "json_schema",
    "parse_config",
    "read_config",
    "shipped_names",
]
