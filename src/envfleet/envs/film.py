"""Write frames of a game to a GIF or an MP4."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.extras import missing
from envfleet.files import replacing

_SUFFIXES = (".gif", ".mp4")


def save_film(path: str | Path, frames: Iterable[NDArray[np.uint8]], *, fps: float = 50) -> Path:
    """Write frames to a file one by one, so that they need not all be in memory.

    The file is replaced atomically. Missing folders are created.

    Args:
        path: Path of the file; its suffix, `.gif` or `.mp4`, selects the format.
        frames: At least one, each uint8 `(height, width, 3)`, as `render()` returns them.
        fps: Frames per second. In a GIF the delay is rounded to hundredths of a second, and 50 is the maximum.

    Returns:
        The path.

    Raises:
        InvalidArgument: The suffix is not supported, `frames` is empty, or frames differ in shape.
        MissingDependency: imageio, or for MP4 imageio-ffmpeg, is not installed.

    Examples:
        >>> import tempfile
        >>> frames = (np.full((48, 60, 3), level, np.uint8) for level in range(0, 250, 50))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_film(f"{folder}/fade.gif", frames, fps=10).stat().st_size > 100
        True
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidArgument(f"{path} ends in {path.suffix!r}: films are written as {' or '.join(_SUFFIXES)}")
    if not fps > 0:
        raise InvalidArgument(f"fps={fps!r}, expected a number above 0: pass the frames per second")
    checked = _check(frames)
    first = next(checked, None)
    if first is None:
        raise InvalidArgument(f"cannot write {path} without frames: play a game with render_mode='rgb_array'")
    with replacing(path) as unfinished, _open_writer(unfinished, fps) as writer:
        for frame in itertools.chain((first,), checked):
            writer.append_data(frame)
    return path


def _check(frames: Iterable[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames, each with an even number of rows and columns, which MP4 needs."""
    shape: tuple[int, ...] | None = None
    for number, image in enumerate(frames):
        frame = np.asarray(image)
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise InvalidArgument(
                f"frame {number} is {frame.dtype} of shape {frame.shape}, expected uint8 of shape (height, width, 3): "
                "render with render_mode='rgb_array'"
            )
        shape = frame.shape if shape is None else shape
        if frame.shape != shape:
            raise InvalidArgument(f"frame {number} has shape {frame.shape}, those before it {shape}: pass one size")
        yield np.pad(frame, ((0, shape[0] % 2), (0, shape[1] % 2), (0, 0)), "edge")


def _open_writer(path: Path, fps: float) -> Any:
    imageio = _import("imageio.v2")
    if path.suffix.lower() == ".gif":
        return imageio.get_writer(path, mode="I", duration=max(20, round(100 / fps) * 10), loop=0)
    _import("imageio_ffmpeg")
    return imageio.get_writer(path, mode="I", format="FFMPEG", fps=fps, macro_block_size=2)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing("a film", error) from error
