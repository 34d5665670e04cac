"""Replay buffers against lists, sum trees against cumulative sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from envfleet.agents.n_step import Discounted
from envfleet.agents.replay import PrioritisedReplay, ReplayBuffer, SumTree
from envfleet.errors import InvalidArgument

SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float64)


def numbered(first: int, count: int) -> Discounted:
    """Transitions whose every column tells their number."""
    numbers = np.arange(first, first + count, dtype=np.float64)
    pairs = np.stack([numbers, numbers], axis=1)
    return Discounted(pairs, numbers.astype(np.int64), numbers, numbers / 1000, pairs + 1)


def make(capacity: int = 10, kind: Any = ReplayBuffer) -> Any:
    return kind(capacity, SPACE, (), torch.int64, rng=np.random.default_rng(0))


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritisedReplay])
def test_batches_are_those_drawn_one_by_one(kind: Any) -> None:
    together, apart = make(kind=kind), make(kind=kind)
    for replay in (together, apart):
        replay.add(numbered(0, 7))
        if kind is PrioritisedReplay:
            replay.set_errors(np.arange(7), np.arange(7))
    for batch in together.batches(19, 5):
        alone = apart.sample(5)
        assert batch.indices.tolist() == alone.indices.tolist()
        for name in ("observations", "actions", "rewards", "discounts", "next_observations", "weights"):
            assert torch.equal(getattr(batch, name), getattr(alone, name)), name
    assert together.sample(5).indices.tolist() == apart.sample(5).indices.tolist()


@given(st.integers(1, 12), st.lists(st.integers(0, 30), min_size=1, max_size=6))
@settings(max_examples=80)
def test_the_last_transitions_are_held_and_no_others(capacity: int, counts: list[int]) -> None:
    for kind in (ReplayBuffer, PrioritisedReplay):
        replay, told = make(capacity, kind), 0
        for count in counts:
            places = replay.add(numbered(told, count))
            told += count
            assert len(places) == min(count, capacity)
        expected = set(range(max(0, told - capacity), told))
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
    replay.add(Discounted(images, np.zeros((5, 2)), np.arange(5.0), np.zeros(5), images))
    batch = replay.sample(20)
    assert batch.observations.dtype == torch.uint8
    assert np.array_equal(batch.observations.numpy(), images[batch.rewards.long().numpy()])


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritisedReplay])
def test_a_buffer_goes_on_from_its_state(kind: Any) -> None:
    rngs = np.random.default_rng(3), np.random.default_rng(3)
    first, second = (kind(7, SPACE, (), torch.int64, rng=rng) for rng in rngs)
    first.add(numbered(0, 10))
    if kind is PrioritisedReplay:
        first.set_errors(np.arange(7), np.arange(7.0))
    state = first.state_dict()
    first.add(numbered(10, 3))
    second.load_state_dict(state)
    second.add(numbered(10, 3))
    assert torch.equal(first.sample(50).actions, second.sample(50).actions)
    with pytest.raises(InvalidArgument, match="capacity 7, this one 8"):
        make(8, kind).load_state_dict(state)
    first.clear()
    with pytest.raises(InvalidArgument, match="empty"):
        first.sample(1)


@given(st.integers(1, 70), st.data())
@settings(max_examples=60)
def test_a_sum_tree_finds_what_cumulative_sums_find(capacity: int, data: Any) -> None:
    tree, numbers = SumTree(capacity), np.zeros(capacity)
    for _ in range(data.draw(st.integers(1, 3))):
        places = np.array(data.draw(st.lists(st.integers(0, capacity - 1), min_size=1, max_size=20)))
        values = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(places), max_size=len(places))), float)
        tree.set(places, values)
        for place, value in zip(places, values, strict=True):
            numbers[place] = value
    assert tree.total == numbers.sum()
    assert np.array_equal(tree.get(np.arange(capacity)), numbers)
    if tree.total:
        sums = np.arange(0, tree.total, 0.5)
        assert np.array_equal(tree.find(sums), np.searchsorted(np.cumsum(numbers), sums, side="right"))
        assert numbers[tree.find(np.array([tree.total]))] > 0


def test_priorities_are_the_chances_of_being_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.agents.replay._SMALLEST_ERROR", 0.0)
    betas = iter([1.0, 0.0, 1.0])
    replay = PrioritisedReplay(
        8, SPACE, (), torch.int64, rng=np.random.default_rng(0), alpha=0.5, beta=lambda: next(betas)
    )
    replay.add(numbered(0, 8))
    errors = np.array([0.0, 1, 4, 9, 16, 25, 36, 49])  # square roots: 0 to 7
    replay.set_errors(np.arange(8), -errors)
    batch = replay.sample(28_000)
    counts = np.bincount(batch.actions.numpy(), minlength=8)
    assert np.abs(counts - 1000 * np.arange(8)).max() <= 1  # slices make it nearly exact
    weights = batch.weights.numpy()
    assert weights == pytest.approx(1 / batch.actions.numpy())  # inverse to the chances, the largest of them 1
    assert replay.sample(10).weights.tolist() == [1.0] * 10
    replay.add(numbered(8, 1))  # in the place of 0, with the highest priority, 7
    assert np.bincount(replay.sample(35_000).actions.numpy(), minlength=9)[8] == pytest.approx(7000, abs=1)
