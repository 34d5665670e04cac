"""A run over a service that is killed and restarted equals one without, to the bit."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import httpx
import numpy as np
from tests.service.conftest import TURBOFAN, Caller
from tests.service.serving import Command
from tests.waiting import PATIENCE_S

import envfleet

NUM_ENVS, NUM_STEPS = 5, 60
KILL = 31


def test_runs_go_on_after_the_service_was_killed(database: str) -> None:
    rng = np.random.default_rng(1)
    actions = rng.choice(3, (NUM_STEPS, NUM_ENVS), p=[0.85, 0.1, 0.05])
    port = 0
    with contextlib.ExitStack() as stack:
        command = stack.enter_context(Command(database, "--env", TURBOFAN))
        token, port = command.read_token(), command.port
        http = stack.enter_context(httpx.Client(base_url=command.url, timeout=PATIENCE_S))
        caller = Caller(http, token)
        fleet = caller.create(TURBOFAN, NUM_ENVS, autoreset_mode="SAME_STEP")
        actual = [caller.call(f"/fleets/{fleet}/reset", seq=0, seeds=3)["observations"]]
        episode = caller.json("/episode/create").json()["episode_id"]
        episode = caller.json("/episode/reset", episode_id=episode, seed=5).json()["new_episode_id"]
        rewards: list[Any] = []
        flown: list[Any] = []
        for k in range(NUM_STEPS):
            step = {"seq": k + 1, "key": bytes([k] * 8), "actions": actions[k]}
            reply = caller.post(f"/fleets/{fleet}/step", **step)
            if k == KILL:
                command.kill()
                command = stack.enter_context(Command(database, "--env", TURBOFAN, port=port))
                again = caller.post(f"/fleets/{fleet}/step", **step)
                assert again.headers["Envfleet-Replayed"] == "1"
                without_times = [_without_times(each) for each in (reply, again)]
                assert without_times[0] == without_times[1]
            values = _values(reply)
            actual.append(values["observations"])
            rewards.append(values["rewards"])
            if k % 10 == 0:
                stepped = caller.json("/episode/step", episode_id=episode, action=int(k == 30), step_size=7)
                assert stepped.status_code == 200, stepped.text
                answer = stepped.json()
                flown.append(answer["step"])
        assert flown == [7, 14, 21, 28, 35, 42]
        assert command.stop() in (0, -signal.SIGTERM)  # uvicorn ends itself by the signal when all is done
    with envfleet.make(TURBOFAN, NUM_ENVS, backend="kernel", autoreset_mode="SAME_STEP") as local:
        np.testing.assert_array_equal(actual[0], local.reset(seed=3)[0])
        for k in range(NUM_STEPS):
            observations, expected, *_ = local.step(actions[k])
            np.testing.assert_array_equal(actual[k + 1], observations)
            np.testing.assert_array_equal(rewards[k], expected)


def _values(reply: httpx.Response) -> Any:
    from envfleet.remote.codec import unpack

    assert reply.status_code == 200, reply.text
    return unpack(reply.content)


def _without_times(reply: httpx.Response) -> bytes:
    """All of a reply but how long its episodes took by the clock."""
    from envfleet.remote.codec import pack

    values = _values(reply)
    values["infos"].get("episode", {}).pop("t", None)
    return pack(values)
