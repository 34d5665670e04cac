"""Action spaces of agents (discrete, tables, boxes), and action distributions of PPO."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from envfleet.errors import InvalidArgument
from envfleet.kernels.policies import Head

_MOST_UNIT = 1 - 1e-6  # tanh in float32 rounds to 1 beyond about 9; actions there count as this
MOST = math.atanh(_MOST_UNIT)


class ActionTable:
    """Table of continuous actions that an agent for discrete actions chooses from.

    Args:
        actions: Distinct actions, one per row, `(K, …)`.

    Attributes:
        actions: Table, float32, read-only.

    Examples:
        >>> table = ActionTable([[-2.0], [0.0], [2.0]])
        >>> table.take(np.array([2, 0])).tolist(), table.indices(np.array([[0.0], [2.0]])).tolist()
        ([[2.0], [-2.0]], [1, 2])
    """

    def __init__(self, actions: ArrayLike) -> None:
        self.actions: NDArray[Any] = np.array(actions, np.float32)
        self.actions.setflags(write=False)
        if self.actions.ndim < 2 or len(np.unique(self.actions, axis=0)) != len(self.actions):
            raise InvalidArgument(
                f"an action table of shape {self.actions.shape}, expected (K, …) with distinct actions: pass one "
                "action per row"
            )

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the actions with these indices, `(N, …)`."""
        actions: NDArray[Any] = self.actions[indices]
        return actions

    def indices(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the indices of these actions, `(N,)`.

        Raises:
            InvalidArgument: An action is not in the table.
        """
        rows = np.asarray(actions, np.float32)
        axes = tuple(range(2, rows.ndim + 1))
        is_equal = (rows[:, None] == self.actions[None]).all(axis=axes)  # (N, K)
        if not is_equal.any(axis=1).all():
            row = int(np.argmin(is_equal.any(axis=1)))
            raise InvalidArgument(
                f"action {rows[row].tolist()} is not in the table of {len(self)} actions: pass actions that act_batch "
                "returned"
            )
        numbers: NDArray[np.int64] = is_equal.argmax(axis=1)
        return numbers


class DiscreteChoices(ActionTable):
    """Actions of a `Discrete` space as a table, int64 `(K,)`."""

    def __init__(self, space: spaces.Discrete[Any]) -> None:
        self._start = int(space.start)
        self.actions = np.arange(self._start, self._start + int(space.n))

    def indices(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the indices of these actions, from 0, `(N,)`.

        Raises:
            InvalidArgument: An action is not in the space.
        """
        numbers = np.asarray(actions, np.int64) - self._start
        if (wrong := numbers[(numbers < 0) | (numbers >= len(self))]).size:
            raise InvalidArgument(
                f"action {wrong[0] + self._start}, expected {self._start} to {self.actions[-1]}: pass actions of the "
                "space"
            )
        return numbers


class Bounds(nn.Module):
    """Bounded box scaled to -1 to 1.

    As a module, it maps outputs of a network to actions: the tanh of the first outputs, scaled to the box.

    Args:
        space: Box of floats.
        takes: Description of the supported spaces, for the error message.

    Raises:
        InvalidArgument: The space is not a bounded box of floats.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self, space: spaces.Space[Any] | ActionTable, takes: str = "SAC and TD3 take a bounded Box of floats"
    ) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind != "f" or not space.is_bounded():
            raise _misfit(space, takes)
        self.shape: tuple[int, ...] = space.shape
        self.size = int(np.prod(self.shape))
        self._low, self._high, self._dtype = space.low, space.high, space.dtype
        self._middle = (space.low.astype(np.float64) + space.high) / 2
        self._reach = (space.high.astype(np.float64) - space.low) / 2
        self._divisor = np.where(self._reach == 0, 1.0, self._reach)
        self.register_buffer("low", torch.from_numpy(space.low.copy()))  # part of exported policies
        self.register_buffer("high", torch.from_numpy(space.high.copy()))

    def forward(self, outputs: Tensor) -> Tensor:
        """Return actions, `(N, …)`, for outputs of a network, `(N, size or more)`."""
        units = torch.tanh(outputs[:, : self.size]).double().reshape(-1, *self.shape)
        low, high = self.low.double(), self.high.double()
        actions = (low + high) / 2 + (high - low) / 2 * units
        return torch.minimum(torch.maximum(actions.to(self.low.dtype), self.low), self.high)

    def take(self, units: NDArray[Any]) -> NDArray[Any]:
        """Return actions of the box, `(N, …)`, for numbers in [-1, 1], `(N, size)`."""
        actions = self._middle + self._reach * units.reshape(-1, *self.shape)
        clipped: NDArray[Any] = np.clip(actions.astype(self._dtype), self._low, self._high)
        return clipped

    def units(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Return actions, `(N, …)`, scaled to [-1, 1], float32 `(N, size)`; 0 for elements with equal bounds."""
        units: NDArray[Any] = (np.asarray(actions, np.float64) - self._middle) / self._divisor
        return units.clip(-1.0, 1.0).reshape(len(units), self.size).astype(np.float32)


class BestChoice(nn.Module):
    """Module from outputs of a network to the actions with the highest outputs.

    Args:
        choices: Actions to choose from.
    """

    actions: Tensor

    def __init__(self, choices: ActionTable) -> None:
        super().__init__()
        self.register_buffer("actions", torch.from_numpy(choices.actions.copy()))

    def forward(self, outputs: Tensor) -> Tensor:
        """Return actions, `(N, …)`, for outputs, `(N, choices)`."""
        return self.actions[outputs.argmax(dim=1)]


def choices_of(space: spaces.Space[Any] | ActionTable) -> ActionTable:
    """Return the actions of a discrete space or a table.

    Raises:
        InvalidArgument: The space is continuous.
    """
    if isinstance(space, ActionTable):
        return space
    if isinstance(space, spaces.Discrete):
        return DiscreteChoices(space)
    raise _misfit(space, "DDDQN takes Discrete, or hockey's table of actions, or in a program an ActionTable")


def _misfit(space: spaces.Space[Any] | ActionTable, takes: str) -> InvalidArgument:
    return InvalidArgument(
        f"the action space is {space}, but {takes}: choose another agent, or change the space with a wrapper "
        "(gymnasium.wrappers.TransformAction) that bounds a Box or enumerates the combinations of MultiDiscrete or "
        "MultiBinary as one Discrete"
    )


class CategoricalPolicy:
    """Categorical distribution; outputs are logits.

    Attributes:
        num_outputs: Number of outputs.
        best: Module from outputs to the most likely actions.
    """

    def __init__(self, space: spaces.Discrete[Any]) -> None:
        self._choices = DiscreteChoices(space)
        self.num_outputs, self.best = len(self._choices), BestChoice(self._choices)

    def draw(self, outputs: Tensor, log_std: Tensor, generator: torch.Generator | None) -> NDArray[Any]:
        """Sample actions; without a generator return the most likely ones."""
        if generator is None:
            indices = outputs.argmax(dim=1)
        else:
            indices = torch.multinomial(outputs.softmax(dim=1), 1, generator=generator).squeeze(1)
        return self._choices.take(indices.cpu().numpy())

    def targets(self, actions: NDArray[Any]) -> Tensor:
        """Return the indices of actions, from 0, for `log_probs`."""
        return torch.from_numpy(self._choices.indices(actions))

    def log_probs(self, outputs: Tensor, log_std: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of actions and entropies, `(B,)` each."""
        logs = outputs.log_softmax(dim=1)
        return logs.gather(1, targets[:, None]).squeeze(1), -(logs.exp() * logs).sum(dim=1)

    def head(self, deterministic: bool, log_std: Tensor) -> tuple[Head, NDArray[Any] | None]:
        """Return the name of the distribution in a compiled policy, and no noise."""
        return ("argmax" if deterministic else "categorical"), None


class SquashedPolicy:
    """Normal distribution squashed into bounds by tanh; outputs are its means.

    Densities are those before tanh: its derivative is the same for the old and the new policy and cancels in ratios.

    Attributes:
        num_outputs: Number of outputs.
        best: Module from outputs to the most likely actions.
    """

    def __init__(self, space: spaces.Space[Any] | ActionTable) -> None:
        self.best = Bounds(space, "PPO takes Discrete or a bounded Box of floats")
        self.num_outputs = self.best.size

    def draw(self, outputs: Tensor, log_std: Tensor, generator: torch.Generator | None) -> NDArray[Any]:
        """Sample actions; without a generator return the most likely ones."""
        if generator is not None:
            outputs = outputs + log_std.exp() * torch.randn(outputs.shape, generator=generator, device=outputs.device)
        return self.best.take(torch.tanh(outputs).cpu().numpy())

    def targets(self, actions: NDArray[Any]) -> Tensor:
        """Return actions before tanh, for `log_probs`."""
        return torch.from_numpy(np.arctanh(self.best.units(actions).clip(-_MOST_UNIT, _MOST_UNIT)))

    def log_probs(self, outputs: Tensor, log_std: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-densities of actions before tanh and entropies, `(B,)` each.

        Means are clipped to the largest action that float32 can represent; otherwise actions sampled around a larger
        mean would seem unlikely.
        """
        scaled = (targets - outputs.clamp(-MOST, MOST)) * (-log_std).exp()
        logs = -0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)
        entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return logs.sum(dim=1), entropy.expand(len(outputs))

    def head(self, deterministic: bool, log_std: Tensor) -> tuple[Head, NDArray[Any] | None]:
        """Return the name of the distribution in a compiled policy, and its log standard deviations."""
        return ("tanh", None) if deterministic else ("tanh_gaussian", log_std.detach().cpu().numpy())
