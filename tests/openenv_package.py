"""The package `openenv-core`, without the packages that only its tools and web pages need."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

_ABSENT = {
    "fastmcp": ("Client", "FastMCP"),
    "fastmcp.client.client": ("CallToolResult",),
    "mcp.types": ("TextContent",),
}


def load(name: str) -> Any:
    """Import a module of OpenEnv in a process that does nothing else.

    All of OpenEnv imports `fastmcp`, which only environments with tools use: classes without a content stand for it.
    """
    for path, names in _ABSENT.items():
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:count]), types.ModuleType(".".join(parts[:count])))
        vars(sys.modules[path]).update({each: type(each, (), {}) for each in names})
    return importlib.import_module(name)
