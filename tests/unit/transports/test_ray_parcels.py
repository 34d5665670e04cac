"""Rows of arrays as bytes, there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from envfleet.core.arrays import PROGRESS_WORDS, ArraysSpec, FleetArrays, PlaceWord
from envfleet.core.messages import ALL_ROWS, Request, ResetPayload, StepPayload, Verb
from envfleet.transports.ray import parcels

N = 5
SPACE = spaces.Dict({"image": spaces.Box(0, 255, (3, 2), np.uint8), "goal": spaces.Discrete(9)})


def arrays(seed: int | None, space: Any = SPACE) -> FleetArrays:
    spec = ArraysSpec(space, spaces.MultiDiscrete([5, 6]), N, 2, has_finals=True, has_columns=True)
    layout = spec.block_layout()
    buffer = layout.allocate()
    if seed is not None:
        for view in layout.views(buffer).values():
            view[...] = np.random.default_rng(seed).integers(2, size=view.shape)
    return FleetArrays.bind(spec, buffer)


REQUESTS = {
    "all": Request(Verb.STEP, 1, 1, None),
    "some": Request(Verb.STEP, 1, 1, StepPayload((3, 1), [], one_by_one=True)),
    "objects": Request(Verb.STEP, 1, 1, StepPayload(None, [], one_by_one=False)),
    "reset": Request(Verb.RESET, 1, 1, ResetPayload((0, 4), (None, None), (None, None))),
    "set_state": Request(Verb.SET_STATE, 1, 1, [(2, None)]),
    "call": Request(Verb.CALL, 1, 1, None),
}
ROWS = {"all": range(N), "some": (1, 3), "objects": range(N), "reset": (0, 4), "set_state": (2,), "call": ()}


@pytest.mark.parametrize("name", REQUESTS)
def test_results_there_and_back(name: str) -> None:
    request, worker, owner = REQUESTS[name], arrays(seed=1), arrays(seed=None)
    records = [(ALL_ROWS, None), (3, b"reply"), (1, b"")]
    rows = parcels.rows_written(request)
    taken = parcels.take_results(worker.outputs[1], rows, 4)
    parcel = parcels.decode_parcel(parcels.encode_parcel(records, worker.progress[1], 4, taken))
    assert parcel.records == records
    np.testing.assert_array_equal(parcel.progress, worker.progress[1])
    if rows is not None:
        parcels.put_results(owner.outputs[1], rows, parcel)
    source, target, written = worker.outputs[1], owner.outputs[1], list(ROWS[name])
    others = [row for row in range(N) if row not in written]
    for one, other in zip([*source.observations, *source.finals], [*target.observations, *target.finals], strict=True):
        np.testing.assert_array_equal(other[written], one[written])
        assert not other[others].any()
    np.testing.assert_array_equal(target.rewards[written], source.rewards[written])
    assert source.info_values is not None
    assert target.info_values is not None
    for one, other in ((source.flags, target.flags), (source.info_values[:4], target.info_values[:4])):
        np.testing.assert_array_equal(other[:, written], one[:, written])
        assert not other[:, others].any()
    assert not target.info_values[4:].any()


@pytest.mark.parametrize("name", ["all", "some", "objects", "reset", "call"])
def test_request_and_actions_there_and_back(name: str) -> None:
    request, owner, worker = REQUESTS[name], arrays(seed=2), arrays(seed=None)
    assert parcels.decode_call(parcels.encode_call(request, owner), worker) == request
    written = list(ROWS[name]) if request.verb is Verb.STEP else []
    np.testing.assert_array_equal(worker.actions[0][written], owner.actions[0][written])
    assert not np.delete(worker.actions[0], written, axis=0).any()


def test_last_observations_only_if_episodes_ended() -> None:
    worker, owner = arrays(seed=3), arrays(seed=4)
    worker.outputs[0].flags[...] = False
    kept = [leaf.copy() for leaf in owner.outputs[0].finals]
    taken = parcels.take_results(worker.outputs[0], parcels.ALL, 0)
    parcel = parcels.decode_parcel(parcels.encode_parcel([], worker.progress[0], 0, taken))
    parcels.put_results(owner.outputs[0], parcels.ALL, parcel)
    for before, after in zip(kept, owner.outputs[0].finals, strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(owner.outputs[0].rewards, worker.outputs[0].rewards)


def test_what_is_large_is_one_array() -> None:
    worker = arrays(seed=5, space=spaces.Box(0, 1, (200, 100)))
    packed = parcels.encode_parcel(
        [(ALL_ROWS, None)], np.arange(PROGRESS_WORDS), 0, parcels.take_results(worker.outputs[0], parcels.ALL, 0)
    )
    assert isinstance(packed, np.ndarray)
    owner = arrays(seed=None, space=spaces.Box(0, 1, (200, 100)))
    parcels.put_results(owner.outputs[0], parcels.ALL, parcels.decode_parcel(packed))
    np.testing.assert_array_equal(owner.outputs[0].observations[0], worker.outputs[0].observations[0])


def test_all_of_a_progress_line_but_what_the_owner_writes() -> None:
    words = {word for name, word in vars(PlaceWord).items() if name.isupper()}
    line, news = np.zeros(PROGRESS_WORDS, np.int64), np.arange(1, PROGRESS_WORDS + 1)
    parcels.put_progress(line, news)
    assert set(np.flatnonzero(line).tolist()) == words - {PlaceWord.INTERRUPT}
