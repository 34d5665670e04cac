"""Replay buffers against lists, sum trees against cumulative sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from envfleet.agents.replay import Priorities, ReplayBuffer, find_leaves, set_leaves, sum_tree
from envfleet.errors import InvalidArgument

SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float64)


def add(replay: ReplayBuffer, first: int, count: int) -> None:
    """Add transitions with their number in every column."""
    arrays, place = replay.room(count)
    for number in range(first, first + count):
        columns = ((number, number), number, number, number / 1000, (number + 1, number + 1))
        for array, column in zip(arrays, columns, strict=True):
            array[(place + number - first) % len(array)] = column
    replay.add(arrays, count)


def make(capacity: int = 10, *, by_priority: bool = False, **options: Any) -> ReplayBuffer:
    priorities = Priorities(capacity, **options) if by_priority else None
    return ReplayBuffer(capacity, SPACE, (), torch.int64, rng=np.random.default_rng(0), priorities=priorities)


@pytest.mark.parametrize("by_priority", [False, True])
def test_batches_are_those_drawn_one_by_one(by_priority: bool) -> None:
    together, apart = make(by_priority=by_priority), make(by_priority=by_priority)
    for replay in (together, apart):
        add(replay, 0, 7)
        if replay.priorities is not None:
            replay.priorities.set_errors(np.arange(7), np.arange(7))
    for drawn in together.batches(19, 5):
        batch = drawn.to(torch.device("cpu"))
        alone = apart.sample(5)
        assert batch.indices.tolist() == alone.indices.tolist()
        for name in ("observations", "actions", "rewards", "discounts", "next_observations", "weights"):
            assert torch.equal(getattr(batch, name), getattr(alone, name)), name
    assert together.sample(5).indices.tolist() == apart.sample(5).indices.tolist()


@given(st.integers(1, 12), st.lists(st.integers(0, 30), min_size=1, max_size=6))
@settings(max_examples=80)
def test_the_last_transitions_are_held_and_no_others(capacity: int, counts: list[int]) -> None:
    for by_priority in (False, True):
        replay, num_written = make(capacity, by_priority=by_priority), 0
        for count in counts:
            add(replay, num_written, count)
            num_written += count
        expected = set(range(max(0, num_written - capacity), num_written))
        assert len(replay) == len(expected)
        if not expected:
            continue
        batch = replay.sample(400)
        numbers = batch.actions.tolist()
        assert set(numbers) == expected  # 400 draws of at most 12; the seed is fixed
        assert batch.rewards.tolist() == numbers
        assert batch.observations[:, 0].tolist() == numbers
        assert batch.next_observations[:, 1].tolist() == [number + 1 for number in numbers]
        assert batch.discounts.tolist() == pytest.approx([number / 1000 for number in numbers])


def test_images_stay_uint8_and_memory_is_told() -> None:
    space = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    replay = ReplayBuffer(100, space, (2,), rng=np.random.default_rng(0))
    assert replay.size_bytes == 100 * (2 * 8 * 8 * 3 + 2 * 4 + 4 + 4)
    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    arrays, _ = replay.room(5)
    arrays[0][:5], arrays[2][:5, 0] = images.reshape(5, -1), np.arange(5)
    replay.add(arrays, 5)
    batch = replay.sample(20)
    assert batch.observations.dtype == torch.uint8
    assert np.array_equal(batch.observations.numpy(), images[batch.rewards.long().numpy()])


@pytest.mark.parametrize("by_priority", [False, True])
def test_a_buffer_goes_on_from_its_state(by_priority: bool) -> None:
    first, second = (make(7, by_priority=by_priority) for _ in range(2))
    add(first, 0, 10)
    if first.priorities is not None:
        first.priorities.set_errors(np.arange(7), np.arange(7.0))
    state = first.state_dict()
    add(first, 10, 3)
    second.load_state_dict(state)
    add(second, 10, 3)
    assert torch.equal(first.sample(50).actions, second.sample(50).actions)
    with pytest.raises(InvalidArgument, match="capacity 7, this one 8"):
        make(8, by_priority=by_priority).load_state_dict(state)
    first.clear()
    with pytest.raises(InvalidArgument, match="empty"):
        first.sample(1)


@pytest.mark.parametrize("by_priority", [False, True])
def test_memory_of_a_device_gets_copies(by_priority: bool) -> None:
    """As on a GPU, which is not needed for it: what compiled code writes is copied to the columns."""
    host, device = make(7, by_priority=by_priority), make(7, by_priority=by_priority)
    device._is_host = False
    for first, count in ((0, 3), (3, 1), (4, 6), (10, 0), (10, 9)):
        for replay in (host, device):
            add(replay, first, count)
        batches = [replay.sample(50) for replay in (host, device)]
        assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in zip(*batches, strict=True))


@given(st.integers(1, 70), st.data())
@settings(max_examples=60)
def test_a_sum_tree_finds_what_cumulative_sums_find(capacity: int, data: Any) -> None:
    tree, numbers = sum_tree(capacity), np.zeros(capacity)
    for _ in range(data.draw(st.integers(1, 3))):
        places = np.array(data.draw(st.lists(st.integers(0, capacity - 1), min_size=1, max_size=20)))
        values = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(places), max_size=len(places))), float)
        set_leaves(tree, places, values)
        for place, value in zip(places, values, strict=True):
            numbers[place] = value
    total = tree[1]
    assert total == numbers.sum()
    assert np.array_equal(tree[len(tree) // 2 :][:capacity], numbers)
    if total:
        sums = np.arange(0, total, 0.5)
        assert np.array_equal(find_leaves(tree, sums), np.searchsorted(np.cumsum(numbers), sums, side="right"))
        assert numbers[find_leaves(tree, np.array([total]))] > 0


def test_priorities_are_the_chances_of_being_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.agents.replay._SMALLEST_ERROR", 0.0)
    betas = iter([1.0, 0.0, 1.0])
    replay = make(8, by_priority=True, alpha=0.5, beta=lambda: next(betas))
    assert replay.priorities is not None
    add(replay, 0, 8)
    errors = np.array([0.0, 1, 4, 9, 16, 25, 36, 49])  # square roots: 0 to 7
    replay.priorities.set_errors(np.arange(8), -errors)
    batch = replay.sample(28_000)
    counts = np.bincount(batch.actions.numpy(), minlength=8)
    assert np.abs(counts - 1000 * np.arange(8)).max() <= 1  # slices make it nearly exact
    weights = batch.weights.numpy()
    assert weights == pytest.approx(1 / batch.actions.numpy())  # inverse to the chances, the largest of them 1
    assert replay.sample(10).weights.tolist() == [1.0] * 10
    add(replay, 8, 1)  # in the place of 0, with the highest priority, 7
    assert np.bincount(replay.sample(35_000).actions.numpy(), minlength=9)[8] == pytest.approx(7000, abs=1)
