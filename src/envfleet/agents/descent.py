"""Steps of gradient descent, targets that follow, and means of the figures of many updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Adam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980), by the kernel of `torch.optim.Adam(fused=True)` alone.

    What `torch.optim` does around that kernel at every step takes longer than the gradients of a small network.

    Args:
        parameters: What is learned; those that need no gradient are left out.
        learning_rate: Of all of them.
        epsilon: Added to the root of the mean square.

    Attributes:
        parameters: Those that are learned.
        learning_rate: Of the next step.
        epsilon: Added to the root of the mean square.
        count: Steps that were taken.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, epsilon: float = 1e-8) -> None:
        self.parameters: list[Tensor] = [parameter for parameter in parameters if parameter.requires_grad]
        self.learning_rate, self.epsilon = learning_rate, epsilon
        self._means = [torch.zeros_like(parameter, requires_grad=False) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter, requires_grad=False) for parameter in self.parameters]
        self.count = 0

    def moments(self, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the running means of the gradients of some parameters, and those of their squares."""
        numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        chosen = [numbers[id(parameter)] for parameter in parameters]
        return [self._means[number] for number in chosen], [self._squares[number] for number in chosen]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step against the gradients, one per parameter, of its shape and dtype."""
        self.count += 1
        count = torch.full((), float(self.count), device=self.parameters[0].device)
        torch._fused_adam_(
            self.parameters,
            [gradient.contiguous() for gradient in gradients],  # the kernel reads them as if they were
            self._means,
            self._squares,
            [],
            [count] * len(self.parameters),
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes, in the form of `torch.optim.Adam`."""
        states = {
            number: {"step": torch.tensor(float(self.count)), "exp_avg": mean, "exp_avg_sq": square}
            for number, (mean, square) in enumerate(zip(self._means, self._squares, strict=True))
        }
        return {"state": states, "param_groups": [{"lr": self.learning_rate, "params": list(states)}]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another, or of a `torch.optim.Adam`."""
        self.learning_rate = state["param_groups"][0]["lr"]
        for number, saved in state["state"].items():
            self._means[number].copy_(saved["exp_avg"])
            self._squares[number].copy_(saved["exp_avg_sq"])
            self.count = int(saved["step"])


def descend(optimiser: Adam, loss: Tensor, max_norm: float | None = None) -> None:
    """Take one step down a loss, with gradients of the optimiser's own parameters only.

    Args:
        optimiser: Whose step.
        loss: A number.
        max_norm: Gradients that are longer, all taken together, are shortened to it; `None` never.
    """
    gradients = torch.autograd.grad(loss, optimiser.parameters)
    if max_norm is not None:
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))  # noqa: SLF001
        torch._foreach_mul_(gradients, (max_norm / (length + 1e-6)).clamp(max=1.0))
    optimiser.step(gradients)


class Means:
    """Means of named figures.

    Attributes:
        count: Updates that were added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._figures: dict[str, list[Tensor | float]] = {}

    def add(self, figures: Mapping[str, Tensor | float]) -> None:
        """Add the figures of one update; not every update has to have every figure."""
        self.count += 1
        for name, value in figures.items():
            self._figures.setdefault(name, []).append(value.detach() if isinstance(value, Tensor) else value)

    def result(self) -> dict[str, float]:
        """Return the mean of every figure."""
        return {name: _mean(values) for name, values in self._figures.items()}


def _mean(values: list[Tensor | float]) -> float:
    if not isinstance(values[0], Tensor):
        return float(sum(values) / len(values))
    return float(torch.stack([torch.as_tensor(value) for value in values]).mean())


class Follower:
    """Moves a target network towards its network.

    Args:
        target: What moves.
        network: Of the same form.
    """

    def __init__(self, target: nn.Module, network: nn.Module) -> None:
        self._targets: list[Tensor] = list(target.parameters())
        self._goals: list[Tensor] = list(network.parameters())

    @torch.no_grad()
    def step(self, tau: float) -> None:
        """Go a share of the way, all of it with `tau=1`."""
        torch._foreach_lerp_(self._targets, self._goals, tau)
