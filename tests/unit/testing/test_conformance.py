"""The conformance suite finds what is wrong with a backend."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envfleet.testing import CASES, CHECKS, ConformanceError, check_backend


class _SeedsAlike(SyncVectorEnv):
    """Gives all sub-environments one seed, drops the infos of a reset, and writes into its environments' metadata."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.metadata = self.envs[0].metadata  # a copy since Gymnasium 1.4
        self.metadata["autoreset_mode"] = self.autoreset_mode

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        seeds: Any = [seed] * self.num_envs if isinstance(seed, int) else seed
        return super().reset(seed=seeds, options=options)[0], {}


class _LendsItsBuffer(SyncVectorEnv):
    """Says copy=True and hands out its own array."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        infos = super().reset(seed=seed, options=options)[1]
        return self._observations, infos


@pytest.mark.parametrize(
    ("flawed", "clues"),
    [
        (_SeedsAlike, ("reset(seed=0, options=None): observations", "infos['episodes']", "[closing]", "[metadata]")),
        (_LendsItsBuffer, ("observations, at the end", "became float64 array")),
    ],
)
def test_finds_flaws(flawed: type[SyncVectorEnv], clues: tuple[str, ...]) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_backend(flawed, cases=CASES[:1], autoreset_modes=[AutoresetMode.NEXT_STEP])
    for clue in clues:
        assert clue in str(caught.value)


class _Raising(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        raise RuntimeError("no steps today")


def test_reports_what_raises() -> None:
    with pytest.raises(ConformanceError, match="no steps today"):
        check_backend(_Raising, cases=CASES[:2], autoreset_modes=[AutoresetMode.SAME_STEP], copy_modes=[True])


class _Hanging(SyncVectorEnv):
    is_over = threading.Event()

    def close(self, **kwargs: Any) -> None:
        self.is_over.wait()
        super().close()


def test_reports_what_hangs() -> None:
    options: dict[str, Any] = {"autoreset_modes": [AutoresetMode.SAME_STEP], "copy_modes": [True]}
    with pytest.raises(ConformanceError, match=r"hung for 5 s") as caught:
        check_backend(_Hanging, cases=CASES[:1], timeout_s=5.0, skip=CHECKS[1:], **options)
    assert "in close" in str(caught.value)
    _Hanging.is_over.set()
    for thread in threading.enumerate():
        if thread.name.startswith("check_backend"):
            thread.join()
