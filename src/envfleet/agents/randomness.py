"""Where agents draw from: generators that are saved and brought back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


class Random:
    """Generators from one seed: of what acts, and of what learns, as both may happen at once.

    Args:
        seed: Theirs; each of them gets a child of it.
        device: Of what the torch generator draws.

    Attributes:
        numpy: Of acting, for draws in arrays.
        replay: Of learning, likewise.
        torch: Of learning, for draws in tensors on `device`.
    """

    def __init__(self, seed: np.random.SeedSequence, device: torch.device | str = "cpu") -> None:
        for_numpy, for_torch, for_replay = seed.spawn(3)
        self.numpy, self.replay = np.random.default_rng(for_numpy), np.random.default_rng(for_replay)
        self.torch = torch.Generator(device)
        self.torch.manual_seed(_word(for_torch))

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        """Draw standard normal numbers in the shape, dtype and place of another tensor."""
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=self.torch)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {
            "numpy": self.numpy.bit_generator.state,
            "replay": self.replay.bit_generator.state,
            "torch": self.torch.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Draw on from where another was."""
        self.numpy.bit_generator.state, self.replay.bit_generator.state = state["numpy"], state["replay"]
        self.torch.set_state(state["torch"].cpu())


@contextlib.contextmanager
def initialising(seed: np.random.SeedSequence) -> Iterator[None]:
    """Draw the first weights of networks from a seed, and leave torch's global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_word(seed))
        yield


def _word(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1))  # torch takes an int64
