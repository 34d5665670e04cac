"""`envfleet status` with replies of something that is not an envfleet service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from envfleet.cli.app import app
from envfleet.cli.remote import _dashboard
from envfleet.errors import WireError

ME = {"user": "mia", "role": "participant", "quota": {}}
FLEET = {"fleet": "f" * 24, "env": "CartPole-v1", "mode": "training", "num_envs": 2}


class FakeLink:
    """Answers what it is given."""

    url = "http://host:8001"

    def __init__(self, **answers: Any) -> None:
        self.answers = {"/me": ME, "/fleets": {"fleets": []}, "/envs": {"envs": {}}, **answers}

    def get(self, path: str) -> Any:
        return self.answers[path]


def test_a_missing_token_is_asked_for_by_the_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ENVFLEET_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["status", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "no token: pass --token TOKEN, or put ENVFLEET_TOKEN=" in re.sub(r"[\s│]+", " ", result.output)


@pytest.mark.parametrize(
    "answers",
    [
        {"/me": {}},
        {"/me": {**ME, "quota": {"steps": {"used": "many", "limit": None}}}},
        {"/fleets": {"fleets": [{**FLEET, "num_envs": -1}]}, f"/fleets/{'f' * 24}": {"seq": 1}},
        {"/fleets": {"fleets": [FLEET]}, f"/fleets/{'f' * 24}": {"seq": 1, "ended": [5]}},
    ],
)
def test_answers_of_something_else(answers: dict[str, Any]) -> None:
    link: Any = FakeLink(**answers)
    with pytest.raises(WireError, match="http://host:8001 answered something else than expected"):
        _dashboard(link)
