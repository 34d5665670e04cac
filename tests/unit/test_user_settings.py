"""Tokens that users pass are used, or refused in words."""

from __future__ import annotations

from typing import Any

import pytest

import envfleet
from envfleet.errors import InvalidArgument


@pytest.mark.parametrize(
    ("token", "clue"), [(5, "of type int, expected a str"), (b"ef_x", "of type bytes"), ("ef x", "copy it again")]
)
def test_what_is_no_token_is_refused(token: Any, clue: str) -> None:
    with pytest.raises(InvalidArgument, match=clue):
        envfleet.connect("http://127.0.0.1:9", "CartPole-v1", 1, token=token)
