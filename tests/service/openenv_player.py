"""Plays an environment with OpenEnv's own client: `python -m tests.service.openenv_player URL ACTIONS`."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.openenv_package import load


def main(url: str, actions: list[Any]) -> dict[str, Any]:
    generic = load("openenv.core.generic_client")
    with generic.GenericEnvClient(base_url=url).sync() as env:
        first = env.reset(seed=3, episode_id="mine")
        steps = [env.step({"action": action}) for action in actions]
        report = {"state": env.state(), "first": vars(first), "steps": [vars(step) for step in steps]}
        try:
            env.step({"action": "left"})
        except RuntimeError as error:
            report["error"] = str(error)
        return report


if __name__ == "__main__":
    json.dump(main(sys.argv[1], json.loads(sys.argv[2])), sys.stdout)
