"""Random number generators of agents, and noise that is correlated over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envfleet.agents.saving import as_array


class Random:
    """Generators of an agent; acting and learning have separate ones, as both can run at the same time.

    Args:
        seed: Seed; its children seed the generators.
        device: Device of the torch generator.

    Attributes:
        numpy: Generator for acting.
        replay: Generator for sampling batches.
        torch: Generator for noise during learning, on `device`.
    """

    def __init__(self, seed: np.random.SeedSequence, device: torch.device | str = "cpu") -> None:
        for_numpy, for_torch, for_replay = seed.spawn(3)
        self.numpy, self.replay = np.random.default_rng(for_numpy), np.random.default_rng(for_replay)
        self.torch = torch.Generator(device)
        self.torch.manual_seed(torch_seed(for_torch))

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        """Return standard normal numbers in the shape and dtype and on the device of another tensor."""
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=self.torch)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        acting, learning = self.numpy.bit_generator.state, self.replay.bit_generator.state
        return {"numpy": acting, "replay": learning, "torch": self.torch.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`; torch's is ignored if it comes from another kind of device."""
        self.numpy.bit_generator.state, self.replay.bit_generator.state = state["numpy"], state["replay"]
        if len(state["torch"]) == len(self.torch.get_state()):
            self.torch.set_state(state["torch"].cpu())


def torch_seed(seed: np.random.SeedSequence) -> int:
    """Return a seed for torch, a nonnegative int64."""
    return int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1))


def colored_sequences(
    shape: tuple[int, ...], length: int, exponent: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw sequences of normal noise with power proportional to `f ** -exponent` at frequency f.

    The spectrum is drawn and transformed back (Timmer and König 1995); every value has mean 0 and variance 1.

    Args:
        shape: Shape of the batch of sequences.
        length: Length of a sequence.
        exponent: 0 for white, 1 for pink, 2 for red noise.
        rng: Random number generator.

    Returns:
        Sequences, float64 `(*shape, length)`.
    """
    frequencies = np.fft.rfftfreq(length)
    is_real = np.isin(frequencies, (0.0, 0.5))
    frequencies[0] = 1.0 / length
    amplitudes = frequencies ** (-exponent / 2)
    spectrum = rng.standard_normal((2, *shape, len(frequencies)))
    spectrum[1][..., is_real] = 0.0
    # Every frequency but those two counts twice in the transform back, as itself and as its mirror image.
    deviation = np.sqrt(np.sum((amplitudes * np.where(is_real, 1.0, 2.0)) ** 2)) / length
    sequences: NDArray[np.float64] = np.fft.irfft((spectrum[0] + 1j * spectrum[1]) * amplitudes, n=length) / deviation
    return sequences


class ColoredNoise:
    """One noise sequence per sub-environment, which is replaced at the start of each episode.

    Pink noise explores better than white or red in most continuous tasks (Eberhard et al. 2023).

    Args:
        num_envs: Number of sub-environments.
        size: Values per step and sub-environment.
        exponent: 0 for white, 1 for pink, 2 for red noise.
        length: Length of a sequence in steps; in a longer episode another one follows. Pass the longest episode.
        rng: Random number generator, which the agent saves.
    """

    def __init__(self, num_envs: int, size: int, exponent: float, length: int, rng: np.random.Generator) -> None:
        self._exponent, self._rng = exponent, rng
        self._sequences = np.zeros((num_envs, size, length), np.float32)
        self._places = np.full(num_envs, length)  # index of the next value; `length` if a new sequence is needed

    def draw(self, env_indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the next values of these sub-environments, float32 `(len(env_indices), size)`."""
        _, size, length = self._sequences.shape
        spent = env_indices[self._places[env_indices] == length]
        if len(spent):
            self._sequences[spent] = colored_sequences((len(spent), size), length, self._exponent, self._rng)
            self._places[spent] = 0
        values: NDArray[np.float32] = self._sequences[env_indices, :, self._places[env_indices]]
        self._places[env_indices] += 1
        return values

    def reset(self, env_indices: NDArray[np.int64]) -> None:
        """Begin new sequences for these sub-environments."""
        self._places[env_indices] = self._sequences.shape[-1]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"sequences": self._sequences.copy(), "places": self._places.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._sequences, self._places = as_array(state["sequences"]), as_array(state["places"])
