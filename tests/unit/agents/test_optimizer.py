"""The optimizer against torch's Adam."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from envfleet.agents import SACConfig
from envfleet.agents.networks import Critics
from envfleet.agents.optimizer import Adam, ParameterBuffer
from envfleet.agents.packing import Packing

SPACE = spaces.Box(-1, 1, (2,), np.float32)


def critics_of(*hidden: int) -> Critics:
    return Critics(Packing(SPACE), SACConfig(hidden=hidden), 1)


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_descending_is_torchs_adam(max_norm: float | None) -> None:
    ours, theirs = (critics_of(4) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizer, reference = (
        Adam(ours.parameters(), 1e-2, max_norm=max_norm),
        torch.optim.Adam(theirs.parameters(), lr=1e-2),
    )
    for number in range(6):
        observations, actions = torch.randn(8, 2), torch.randn(8, 1)
        optimizer.minimize(ours(observations, actions).square().mean())
        reference.zero_grad()
        theirs(observations, actions).square().mean().backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        reference.step()
        if number == 2:
            state, optimizer = optimizer.state_dict(), Adam(ours.parameters(), 1.0, max_norm=max_norm)
            optimizer.load_state_dict(state)
    for actual, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(actual, yours, atol=1e-6)


def test_the_layout_of_parameters_makes_no_difference() -> None:
    slopes = torch.randn(3, 2)
    turned, plain = (
        nn.Parameter(torch.arange(6.0).view(2, 3).T),
        nn.Parameter(torch.arange(6.0).view(2, 3).T.contiguous()),
    )
    for parameter in (turned, plain):
        optimizer = Adam([parameter], 0.1, max_norm=None)
        for _ in range(3):
            optimizer.minimize((parameter.square() * slopes).sum())
    assert torch.equal(turned, plain)
    assert not torch.equal(turned, torch.arange(6.0).view(2, 3).T)


def test_parameters_that_lie_side_by_side_by_chance_are_joined() -> None:
    """Parameters as on a GPU: its allocator cuts memory into pieces without gaps."""
    both = np.arange(8, dtype=np.float32)
    first, second = torch.from_numpy(both[:4]), torch.from_numpy(both[4:])
    assert first.data_ptr() + 16 == second.data_ptr()
    assert ParameterBuffer([first, second]).tensor.tolist() == list(range(8))
