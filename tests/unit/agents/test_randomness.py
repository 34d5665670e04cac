"""Colored noise: its spectrum, its variance, and one sequence per sub-environment."""

from __future__ import annotations

import numpy as np
import pytest

from envfleet.agents.randomness import ColoredNoise, colored_sequences


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("length", [256, 255])
def test_power_falls_with_frequency_as_asked(exponent: float, length: int) -> None:
    sequences = colored_sequences((4000,), length, exponent, np.random.default_rng(0))
    power = (np.abs(np.fft.rfft(sequences)) ** 2).mean(axis=0)[1:-1]
    slope = np.polyfit(np.log(np.fft.rfftfreq(length)[1:-1]), np.log(power), 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.03)
    assert sequences.mean() == pytest.approx(0.0, abs=0.05)
    assert sequences.std(axis=0) == pytest.approx(np.ones(length), abs=0.06)  # at every step


def test_noise_differs_by_sub_environment_and_episode() -> None:
    noise = ColoredNoise(3, 2, 2.0, 100, np.random.default_rng(0))
    everyone = np.arange(3)
    first = np.array([noise.draw(everyone) for _ in range(50)])
    noise.reset(np.array([1]))
    second = np.array([noise.draw(everyone) for _ in range(50)])
    jump = np.abs(second[0] - first[-1]).max(axis=1)
    usual = np.abs(np.diff(first, axis=0)).max()
    assert jump[0] <= 2 * usual
    assert jump[2] <= 2 * usual
    assert jump[1] > 2 * usual
    assert np.abs(np.corrcoef(first[:, :, 0].T) - np.eye(3)).max() < 0.999


def test_drawing_for_some_leaves_the_others_where_they_are() -> None:
    together = ColoredNoise(2, 1, 1.0, 8, np.random.default_rng(0))
    apart = ColoredNoise(2, 1, 1.0, 8, np.random.default_rng(0))
    both = np.array([0, 1])
    expected = np.array([together.draw(both) for _ in range(8)])
    first = apart.draw(both)
    ones = [apart.draw(both[1:])[0] for _ in range(7)]
    zeros = [apart.draw(both[:1])[0] for _ in range(7)]
    assert np.array_equal(np.concatenate([first[None, :], np.stack([zeros, ones], axis=1)]), expected)
