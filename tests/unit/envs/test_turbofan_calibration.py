"""The turbofan against figures of an independent simulation of the same model, and of 617 recorded episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import envfleet
from envfleet.envs.turbofan import FAILURE, NAMES, ThresholdPolicy

NUM_ENGINES = 3000
Policy = Callable[[int, NDArray[Any]], Any]


class Lives(NamedTuple):
    """Results of many engines, one entry each."""

    returns: NDArray[np.float64]
    failed: NDArray[np.bool_]
    flights: NDArray[np.int64]
    blocks: list[NDArray[np.float64]]  # rewards of those that live and did not end, per decision
    rows: list[NDArray[np.float32]]  # last sensor row of the same


def live(policy: Policy, most: int = 1000) -> Lives:
    returns, flights = np.zeros(NUM_ENGINES), np.zeros(NUM_ENGINES, np.int64)
    failed, alive = np.zeros(NUM_ENGINES, np.bool_), np.ones(NUM_ENGINES, np.bool_)
    blocks, rows = [], []
    with envfleet.make("envfleet/Turbofan-v0", NUM_ENGINES, backend="kernel", autoreset_mode="SAME_STEP") as fleet:
        observations, _ = fleet.reset(seed=1000)
        for k in range(most):
            actions = np.broadcast_to(policy(k, observations), NUM_ENGINES).astype(np.int64)
            observations, rewards, terminated, truncated, infos = fleet.step(actions)
            ended = terminated | truncated
            final = infos.get("final_info", infos)
            returns[alive] += rewards[alive]
            flights[alive] += np.where(ended, final["num_rows"], infos["num_rows"])[alive]
            failed |= alive & ended & (final["reason"] == FAILURE)
            alive &= ~ended
            blocks.append(rewards[alive])
            rows.append(observations[alive, -1])
            if not alive.any():
                break
    return Lives(returns, failed, flights, blocks, rows)


def random_choice(actions: int) -> Policy:
    rng = np.random.default_rng(7)
    return lambda _, __: rng.integers(0, actions, NUM_ENGINES)


def periodic(every: int, sale: int, first: int = 0) -> Policy:
    return lambda k, _: 2 if k == sale else int(k > 0 and (k - first) % every == 0)


def threshold(**kwargs: Any) -> Policy:
    policy = ThresholdPolicy(NUM_ENGINES, **kwargs)
    return lambda _, observations: policy.act_batch(observations)


# policy, then mean and standard deviation of the return, failures, and flights
TABLE: dict[str, tuple[Policy, float, float, float, float | None]] = {
    "sell at once": (lambda *_: 2, 150, 10, 0.0, 1),
    "random": (random_choice(3), 36, 654, 0.002, 21),
    "random, never sell": (random_choice(2), -10_054, 6540, 0.98, 530),
    "fly": (lambda *_: 0, 1783, 225, 1.0, 125),
    "sell at 8": (periodic(1000, 8), 2616, 170, 0.004, 81),
    "sell at 10": (periodic(1000, 10), 2805, 286, 0.026, 101),
    "repair every 4, sell at 32": (periodic(4, 32), 3841, 490, 0.03, 318),
    "repair every 6, sell at 31": (periodic(6, 31), 3823, 657, 0.43, 300),
    "repair every 6, sell at 28": (periodic(6, 28), 4466, 610, 0.04, None),
    "repair every 6, never sell": (periodic(6, 1000, 5), 3462, 590, 1.0, None),
    "threshold 0.65": (threshold(), 4857, 800, 0.08, None),
    "threshold 0.7": (threshold(repair_above=0.7), 4889, 874, 0.13, 414),
    "threshold 0.7, 2 repairs": (threshold(repair_above=0.7, max_repairs=2), 4065, 600, 0.039, None),
    "threshold 0.7, 14 repairs": (threshold(repair_above=0.7, max_repairs=14), 4565, 1090, 0.25, None),
    "threshold 0.4, 5 repairs": (threshold(repair_above=0.4, max_repairs=5), 3685, 640, 0.022, None),
}


@pytest.mark.parametrize("name", TABLE)
def test_returns_of_known_policies(name: str) -> None:
    policy, mean, sd, failures, flights = TABLE[name]
    lives = live(policy)
    # The table is of as many engines or fewer: 99.99 % interval of the difference of two means.
    margin = 4.0 * sd * np.sqrt(1 / NUM_ENGINES + 1 / 2000)
    assert lives.returns.mean() == pytest.approx(mean, abs=margin)
    share = max(failures * (1 - failures), 0.002)
    assert lives.failed.mean() == pytest.approx(
        failures, abs=4.0 * np.sqrt(share * (1 / NUM_ENGINES + 1 / 2000)) + 0.01
    )
    if flights is not None:
        assert lives.flights.mean() == pytest.approx(flights, rel=0.02)


def test_always_repairing_ruins() -> None:
    lives = live(lambda *_: 1, most=100)
    assert lives.returns.mean() == pytest.approx(-62_375, abs=4 * 9994 * np.sqrt(2 / NUM_ENGINES))
    assert lives.failed.mean() == pytest.approx(0.83, abs=0.04)


def test_profit_falls_as_recorded() -> None:
    lives = live(lambda *_: 0, most=13)
    recorded = [455, 414, 375, 337, 297, 260, 223, 190]  # 617 episodes that people flew, sd 13 to 15
    profits = [float(block.mean()) for block in lives.blocks[: len(recorded)]]
    np.testing.assert_allclose(profits, recorded, atol=20)
    assert 10 < lives.blocks[0].std() < 20


def test_sensors_lie_and_move_as_recorded() -> None:
    rows = live(lambda *_: 0, most=13).rows
    every = np.concatenate(rows)
    # lowest, highest, first and last before failure, as recorded
    recorded = {
        "HPC_Tout": (778.4, 803.0, 795.4, 786.0),
        "HP_Nmech": (18_775, 19_498, 19_362, 19_045),
        "HPC_Tin": (334.4, 337.5, 335.6, 335.8),
        "LPT_Tin": (1113.6, 1129.7, 1119.5, 1122.2),
        "Fuel_flow": (0.3708, 0.3738, 0.3720, 0.37235),
        "HPC_Pout_st": (1.299e6, 1.380e6, 1.3647e6, 1.3246e6),
        "LP_Nmech": (3951, 3966, 3957, 3958),
        "DTAMB": (9.1, 10.9, 10.0, 10.0),
    }
    for name, (low, high, fresh, worn) in recorded.items():
        column, span = every[:, NAMES.index(name)], high - low
        assert column.min() > low - 0.25 * span, name
        assert column.max() < high + 0.25 * span, name
        assert rows[0][:, NAMES.index(name)].mean() == pytest.approx(fresh, abs=0.08 * span), name
        assert rows[11][:, NAMES.index(name)].mean() == pytest.approx(worn, abs=0.12 * span), name
    assert not every[:, NAMES.index("phase_type")].any()


def test_one_snapshot_tells_most_of_the_wear() -> None:
    with envfleet.make("envfleet/Turbofan-v0", NUM_ENGINES, backend="kernel", step_size=5, reveal=True) as fleet:
        fleet.reset(seed=5)
        rows, wear = [], []
        for _ in range(16):
            observations, *_, infos = fleet.step(np.zeros(NUM_ENGINES, np.int64))
            rows.append(observations[:, -1, [0, 1, 2, 3, 4, 5, 6, 8]].astype(np.float64))
            wear.append(infos["degradation"])
    inputs, target = np.concatenate(rows), np.concatenate(wear)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    rest = target - target.mean()
    fitted = inputs @ np.linalg.lstsq(inputs, rest, rcond=None)[0]
    assert 0.85 < 1 - np.var(rest - fitted) / np.var(rest) < 0.97  # recorded: 0.88 over whole lives
