"""The episodes that ended in a step on the device, fetched if somebody looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.buffers import ENDED_DTYPE
from envfleet.kernels.cuda.arrays import DeviceArray


class DeviceEnded:
    """What `Ended` tells of a step, on the device until somebody looks.

    Args:
        count: Fetches the number of episodes.
        arrays: The step's ended episodes and, in `SAME_STEP`, final observations and infos; while they are held, no
            other step writes them.
        names: Of the infos.
        now: When the step was taken, in nanoseconds.
    """

    def __init__(
        self, count: Callable[[], int], arrays: tuple[DeviceArray, ...], names: tuple[str, ...], now: int
    ) -> None:
        self._count, self._arrays, self._names = count, arrays, names
        self._episodes: NDArray[Any] | None = None
        self.now = now

    @property
    def episodes(self) -> NDArray[Any]:
        """Records of `ENDED_DTYPE` by ascending row, `(episodes,)`."""
        if self._episodes is None:
            count = self._count()
            episodes = self._arrays[0].head(count) if count else np.zeros(0, ENDED_DTYPE)
            self._episodes = episodes[np.argsort(episodes["row"])]
        return self._episodes

    @property
    def observations(self) -> NDArray[Any] | None:
        """The last ones, which a reset replaced (`SAME_STEP`), on the host; else `None`."""
        return self._arrays[1].numpy()[self.episodes["row"]] if len(self._arrays) > 1 else None

    @property
    def infos(self) -> dict[str, NDArray[Any]]:
        """Likewise, by name."""
        rows = self.episodes["row"]
        columns = zip(self._names, self._arrays[2:], strict=False)  # none but in SAME_STEP
        return {name: array.numpy()[rows] for name, array in columns}
