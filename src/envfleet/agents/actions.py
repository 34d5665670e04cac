"""Actions that agents choose from: the numbers of discrete spaces, a table, a box; and how PPO draws them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from envfleet.errors import InvalidArgument
from envfleet.kernels.rollouts.policies import Head

_MOST_UNIT = 1 - 1e-6  # tanh in float32 rounds to 1 beyond about 9; actions there count as this
MOST = math.atanh(_MOST_UNIT)


class ActionTable:
    """Some continuous actions, so that an agent for discrete ones can play.

    Args:
        actions: One per row, `(K, …)`; no two alike.

    Attributes:
        actions: The table, float32, read-only.

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
                f"an action table of shape {self.actions.shape}, expected (K, …) with no action twice: pass one "
                "different action per row"
            )

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the actions of these numbers, `(N, …)`."""
        actions: NDArray[Any] = self.actions[indices]
        return actions

    def indices(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the numbers of these actions, `(N,)`.

        Raises:
            InvalidArgument: An action is not in the table.
        """
        given = np.asarray(actions, np.float32)
        axes = tuple(range(2, given.ndim + 1))
        is_equal = (given[:, None] == self.actions[None]).all(axis=axes)  # (N, K)
        if not is_equal.any(axis=1).all():
            row = int(np.argmin(is_equal.any(axis=1)))
            raise InvalidArgument(
                f"action {given[row].tolist()} is none of the {len(self)} of the table: pass actions as act_batch "
                "returned them"
            )
        numbers: NDArray[np.int64] = is_equal.argmax(axis=1)
        return numbers


class DiscreteChoices(ActionTable):
    """The actions of a `Discrete` space, as a table of its numbers, int64 `(K,)`."""

    def __init__(self, space: spaces.Discrete[Any]) -> None:
        self._start = int(space.start)
        self.actions = np.arange(self._start, self._start + int(space.n))

    def indices(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the numbers of these actions, from 0, `(N,)`.

        Raises:
            InvalidArgument: An action is not in the space.
        """
        numbers = np.asarray(actions, np.int64) - self._start
        if (wrong := numbers[(numbers < 0) | (numbers >= len(self))]).size:
            raise InvalidArgument(f"action {wrong[0] + self._start}, expected {self._start} to {self.actions[-1]}")
        return numbers


class Bounds(nn.Module):
    """A bounded box, as an agent sees it: every element from -1 to 1.

    As a module it makes actions of outputs of a network: the tanh of the first ones, stretched to the box.

    Args:
        space: The box.
        takes: What whose actions these are takes, for the error that refuses the space.

    Raises:
        InvalidArgument: It is no box of floats, or not bounded.
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
        self.register_buffer("low", torch.from_numpy(space.low.copy()))  # what files of policies hold
        self.register_buffer("high", torch.from_numpy(space.high.copy()))

    def forward(self, outputs: Tensor) -> Tensor:
        """`(N, at least the size of an action)` to actions, `(N, …)`."""
        units = torch.tanh(outputs[:, : self.size]).double().reshape(-1, *self.shape)
        low, high = self.low.double(), self.high.double()
        actions = (low + high) / 2 + (high - low) / 2 * units
        return torch.minimum(torch.maximum(actions.to(self.low.dtype), self.low), self.high)

    def take(self, units: NDArray[Any]) -> NDArray[Any]:
        """Actions of the box, `(N, …)`, from numbers in [-1, 1], `(N, size)`."""
        actions = self._middle + self._reach * units.reshape(-1, *self.shape)
        clipped: NDArray[Any] = np.clip(actions.astype(self._dtype), self._low, self._high)
        return clipped

    def units(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """Numbers in [-1, 1], float32 `(N, size)`, from actions, `(N, …)`; where the box has no width, 0."""
        units: NDArray[Any] = (np.asarray(actions, np.float64) - self._middle) / self._divisor
        return units.clip(-1.0, 1.0).reshape(len(units), self.size).astype(np.float32)


class BestChoice(nn.Module):
    """The action with the highest output of a network, as a module.

    Args:
        choices: What is chosen from.
    """

    actions: Tensor

    def __init__(self, choices: ActionTable) -> None:
        super().__init__()
        self.register_buffer("actions", torch.from_numpy(choices.actions.copy()))

    def forward(self, outputs: Tensor) -> Tensor:
        """`(N, choices)` to actions, `(N, …)`."""
        return self.actions[outputs.argmax(dim=1)]


def choices_of(space: spaces.Space[Any] | ActionTable) -> ActionTable:
    """Return what can be chosen of a discrete space or a table.

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
        f"the action space is {space}, but {takes}: take another agent, or change the space in a wrapper "
        "(gymnasium.wrappers.TransformAction) that bounds a Box, or numbers the combinations of MultiDiscrete or "
        "MultiBinary as one Discrete"
    )


class CategoricalPolicy:
    """The outputs are the logarithms of chances, up to a constant.

    Attributes:
        num_outputs: How many there are.
        best: Module from outputs to the likeliest actions.
    """

    def __init__(self, space: spaces.Discrete[Any]) -> None:
        self._choices = DiscreteChoices(space)
        self.num_outputs, self.best = len(self._choices), BestChoice(self._choices)

    def draw(self, outputs: Tensor, log_std: Tensor, generator: torch.Generator | None) -> NDArray[Any]:
        """Draw actions; without a generator return the likeliest ones."""
        if generator is None:
            indices = outputs.argmax(dim=1)
        else:
            indices = torch.multinomial(outputs.softmax(dim=1), 1, generator=generator).squeeze(1)
        return self._choices.take(indices.cpu().numpy())

    def targets(self, actions: NDArray[Any]) -> Tensor:
        """Numbers of the actions, from 0."""
        return torch.from_numpy(self._choices.indices(actions))

    def log_probs(self, outputs: Tensor, log_std: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the chances of actions, and entropies, `(B,)` each."""
        logs = outputs.log_softmax(dim=1)
        return logs.gather(1, targets[:, None]).squeeze(1), -(logs.exp() * logs).sum(dim=1)

    def head(self, deterministic: bool, log_std: Tensor) -> tuple[Head, NDArray[Any] | None]:
        """Return the name of this in a compiled policy."""
        return ("argmax" if deterministic else "categorical"), None


class SquashedPolicy:
    """The outputs are the means of a normal distribution, whose draws are squashed into bounds by tanh.

    All is reckoned before the tanh: its slope is the same under the old policy and the new, so it falls out of ratios.

    Attributes:
        num_outputs: How many there are.
        best: Module from outputs to the likeliest actions.
    """

    def __init__(self, space: spaces.Space[Any] | ActionTable) -> None:
        self.best = Bounds(space, "PPO takes Discrete or a bounded Box of floats")
        self.num_outputs = self.best.size

    def draw(self, outputs: Tensor, log_std: Tensor, generator: torch.Generator | None) -> NDArray[Any]:
        """Draw actions; without a generator return the likeliest ones."""
        if generator is not None:
            outputs = outputs + log_std.exp() * torch.randn(outputs.shape, generator=generator, device=outputs.device)
        return self.best.take(torch.tanh(outputs).cpu().numpy())

    def targets(self, actions: NDArray[Any]) -> Tensor:
        """Return what the tanh was taken of."""
        return torch.from_numpy(np.arctanh(self.best.units(actions).clip(-_MOST_UNIT, _MOST_UNIT)))

    def log_probs(self, outputs: Tensor, log_std: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the densities of actions before the tanh, and entropies, `(B,)` each.

        Means beyond the outermost action count as that one, or what is drawn around them would look unlikely.
        """
        scaled = (targets - outputs.clamp(-MOST, MOST)) * (-log_std).exp()
        logs = -0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)
        entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return logs.sum(dim=1), entropy.expand(len(outputs))

    def head(self, deterministic: bool, log_std: Tensor) -> tuple[Head, NDArray[Any] | None]:
        """Return the name of this in a compiled policy, and its noise."""
        return ("tanh", None) if deterministic else ("tanh_gaussian", log_std.detach().cpu().numpy())
