"""Arbitrary bytes cause no server error and step nothing."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.conftest import Caller

from envfleet.remote.codec import pack, unpack
from envfleet.service.service import Service

EXAMPLES = 60
scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=5)
)
scalars = scalars | st.binary(max_size=20)
arrays = st.sampled_from([np.zeros(3, np.int64), np.full(3, np.nan), np.zeros((3, 2), np.int8), np.zeros(0, np.uint8)])
values = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@pytest.fixture(scope="module")
def target(running: tuple[httpx.Client, Service]) -> tuple[Caller, str]:
    caller = Caller(running[0], running[1].tokens.create("mallory"))
    fleet = caller.create()
    caller.call(f"/fleets/{fleet}/reset", seq=0)
    return caller, fleet


def is_refused(response: httpx.Response) -> bool:
    return 400 <= response.status_code < 500 and isinstance(response.json()["detail"], str)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.sampled_from(["step", "reset"]))
def test_bytes(target: tuple[Caller, str], body: bytes, call: str) -> None:
    caller, fleet = target
    assert is_refused(caller.post_raw(f"/fleets/{fleet}/{call}", body))


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_frames_of_the_right_form_with_wrong_values(target: tuple[Caller, str], data: st.DataObject) -> None:
    caller, fleet = target
    seq = unpack(caller.get(f"/fleets/{fleet}").content)["seq"]
    fields: dict[str, Any] = {"seq": st.just(seq) | values, "key": st.just(b"k" * 8) | values, "actions": values}
    body = data.draw(st.fixed_dictionaries(fields))
    response = caller.post_raw(f"/fleets/{fleet}/step", pack(body))
    after = unpack(caller.get(f"/fleets/{fleet}").content)["seq"]
    assert after - seq == int(response.status_code == 200 and "Envfleet-Replayed" not in response.headers)
    assert response.status_code == 200 or is_refused(response)


@settings(max_examples=EXAMPLES)
@given(rows=values, seeds=values)
def test_resets_with_wrong_values(target: tuple[Caller, str], rows: Any, seeds: Any) -> None:
    caller, fleet = target
    seq = unpack(caller.get(f"/fleets/{fleet}").content)["seq"]
    response = caller.post(f"/fleets/{fleet}/reset", seq=seq, rows=rows, seeds=seeds)
    assert response.status_code == 200 or is_refused(response)


@settings(max_examples=EXAMPLES)
@given(body=st.dictionaries(st.sampled_from(["env", "num_envs", "key", "autoreset_mode", "mode", "options"]), values))
def test_creations_with_wrong_values(target: tuple[Caller, str], body: dict[str, Any]) -> None:
    assert is_refused(target[0].post_raw("/fleets", pack(body)))


@pytest.fixture(scope="module")
def schema(running: tuple[httpx.Client, Service]) -> Any:
    return schemathesis.openapi.from_url(f"{running[0].base_url}/openapi.json")


def test_json_calls_never_fail(schema: Any, target: tuple[Caller, str]) -> None:
    token, tried = target[0].token, []
    for result in schema.get_all_operations():
        operation = result.ok()
        if not operation.path.startswith(("/api/v1", "/healthz", "/readyz")):
            continue
        tried.append(operation.path)

        @settings(max_examples=8, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def never_fails(case: Any) -> None:
            response = case.call(headers={"User-Token": token})
            assert response.status_code < 500, f"{case.method} {case.path}: {response.text}"

        never_fails()
    assert len(tried) == 13
