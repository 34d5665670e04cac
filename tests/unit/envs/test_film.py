"""Films of games, read back by imageio."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import imageio_ffmpeg
import numpy as np
import pytest
from tests.waiting import PATIENCE_S

from envfleet.envs.film import save_film
from envfleet.envs.hockey import HockeyTwoEnv
from envfleet.errors import InvalidArgument, MissingDependency


@pytest.fixture(scope="module")
def frames() -> list[np.ndarray]:
    env = HockeyTwoEnv(mode=1, player_one=2, player_two=2, render_mode="rgb_array")
    env.reset(seed=1)
    rendered: list[Any] = []
    for _ in range(12):
        rendered.append(np.array(env.render())[::3, ::3])  # so that it is quick
        env.step(np.zeros((2, 4), np.float32))
    return rendered


def test_a_gif_has_every_frame_as_it_was(tmp_path: Path, frames: list[np.ndarray]) -> None:
    path = save_film(tmp_path / "new" / "game.gif", iter(frames))
    np.testing.assert_allclose(imageio.imread(path, plugin="pillow", index=None), frames, atol=8)
    meta = imageio.immeta(path, plugin="pillow")
    assert (meta["duration"], meta["loop"]) == (20, 0)
    assert [one.name for one in path.parent.iterdir()] == ["game.gif"]


def test_an_mp4_looks_like_the_game(tmp_path: Path, frames: list[np.ndarray]) -> None:
    odd = [frame[:-1, :-1] for frame in frames]  # (159, 199, 3)
    path = save_film(str(tmp_path / "game.mp4"), odd, fps=25)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S).stdout
    film = np.frombuffer(pixels, np.uint8).reshape(12, 160, 200, 3)
    assert np.abs(film[:, :-1, :-1].astype(int) - odd).mean() < 4
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (12, pytest.approx(12 / 25, abs=0.01))


def test_a_film_that_fails_leaves_the_old_one(tmp_path: Path, frames: list[np.ndarray]) -> None:
    path = save_film(tmp_path / "game.gif", frames[:2])
    before = path.read_bytes()

    def breaking() -> Iterator[np.ndarray]:
        yield frames[0]
        raise RuntimeError("the game broke")

    with pytest.raises(RuntimeError, match="broke"):
        save_film(path, breaking())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "shapes", "fps", "message"),
    [
        ("game.avi", [(4, 4, 3)], 50, r"ends in '.avi': films are written as .gif or .mp4"),
        ("game", [(4, 4, 3)], 50, "ends in ''"),
        ("game.gif", [], 50, "without frames.*render_mode"),
        ("game.gif", [(4, 4, 3), (4, 6, 3)], 50, r"frame 1 has shape \(4, 6, 3\)"),
        ("game.gif", [(4, 4)], 50, r"frame 0 is uint8 of shape \(4, 4\)"),
        ("game.gif", [(4, 4, 3)], 0, "fps=0"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, name: str, shapes: list[Any], fps: float, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        save_film(tmp_path / name, [np.zeros(shape, np.uint8) for shape in shapes], fps=fps)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "module"), [("game.gif", "imageio.v2"), ("game.mp4", "imageio_ffmpeg")])
def test_what_is_not_installed_is_named(
    tmp_path: Path, frames: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=r"pip install 'envfleet\[video\]'"):
        save_film(tmp_path / name, frames[:1])
