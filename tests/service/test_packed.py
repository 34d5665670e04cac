"""Bounds of MessagePack bodies, compared with what MessagePack's own decoder reads."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from tests.service.conftest import TURBOFAN, Caller

from envfleet.errors import WireError
from envfleet.service.protocols.packed import MOST_ELEMENTS, check_packed


def make_value(rng: random.Random, level: int = 0) -> Any:
    kind = rng.randrange(9 if level < 6 else 7)
    size = rng.choice([0, 3, 20, 40, 300, 70_000])
    if kind < 2:
        return [None, True, -5, 200, 70_000, -(2**40), 2**63, 1.5][rng.randrange(8)]
    if kind < 4:
        return "x" * size
    if kind < 6:
        return b"x" * size
    if kind == 6:
        return msgpack.ExtType(1, b"x" * rng.choice([1, 2, 4, 8, 16, size]))
    few = rng.randrange(20)
    if kind == 7:
        return [make_value(rng, level + 1) for _ in range(few)]
    return {f"k{i}": make_value(rng, level + 1) for i in range(few)}


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + count(one) for one in value.values())
    return 1 + sum(count(one) for one in value) if isinstance(value, list) else 1


@pytest.mark.parametrize("seed", range(30))
def test_elements_are_counted_as_the_decoder_reads(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    value = make_value(random.Random(seed))
    body, elements = msgpack.packb([value]), count([value])
    module = "envfleet.service.protocols.packed"
    monkeypatch.setattr(f"{module}.MOST_ELEMENTS", elements)
    check_packed(body)
    monkeypatch.setattr(f"{module}.MOST_ELEMENTS", elements - 1)
    with pytest.raises(WireError, match="elements or 16 levels: send numbers as arrays"):
        check_packed(body)


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\x00\xff\xff\xf0" + b"\xc0" * 2**20,  # a list of many nils, of one byte each
        b"\xdd\xff\xff\xff\xff",  # a list that only claims to be long
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 1000,  # lists in lists
        msgpack.packb({"actions": [0] * (MOST_ELEMENTS + 1)}),
    ],
)
def test_a_body_with_too_many_elements_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="more than 100,000 elements or 16 levels"):
        check_packed(body)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\xd9", b"\xda\xff", b"\x93\x01", b"\xc4\xff", b"\x00\x00"])
def test_the_decoder_refuses_what_is_not_messagepack(body: bytes) -> None:
    check_packed(body)


def test_a_step_has_the_size_that_its_actions_need(ann: Caller) -> None:
    fleet = ann.create(TURBOFAN, 2)
    ann.call(f"/fleets/{fleet}/reset", seq=0)
    nils = b"\xdd" + (2**24).to_bytes(4, "big") + b"\xc0" * 2**24
    answer = ann.post_raw(f"/fleets/{fleet}/step", nils)
    assert answer.status_code == 413, answer.text
    assert "the limit of this call" in answer.text
    ann.call(f"/fleets/{fleet}/step", seq=1, actions=[0, 0])
