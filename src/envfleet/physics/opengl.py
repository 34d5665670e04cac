"""Selection of an OpenGL platform with which MuJoCo can draw, with or without a display."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import warnings

from envfleet.errors import MissingDependency

_VARIABLE = "MUJOCO_GL"
"""Environment variable that selects the platform, read when MuJoCo is imported and when a scene is drawn first."""


def require_opengl() -> None:
    """Select a platform with which MuJoCo can draw, unless `MUJOCO_GL` names one.

    Gymnasium takes GLFW, which needs a display, and fails without one; EGL and OSMesa draw into memory.

    Raises:
        MissingDependency: None works, or the selected one does not; the message says what to install.
    """
    selected = os.environ.get(_VARIABLE)
    problems = []
    for platform in (selected,) if selected else _platforms():
        problem = _problem_of(platform)
        if problem is None:
            os.environ[_VARIABLE] = platform
            return
        problems.append(f"{platform}: {problem}")
    raise MissingDependency(
        f"frames of MuJoCo need OpenGL, which does not work here ({'; '.join(problems)}): without a display, install "
        f"EGL, such as `apt install libegl1`, and set {_VARIABLE}=egl, or libosmesa6 and {_VARIABLE}=osmesa"
    )


def _platforms() -> tuple[str, ...]:
    if sys.platform != "linux":
        return ("glfw",)
    has_display = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return ("glfw", "egl", "osmesa") if has_display else ("egl", "osmesa")


@functools.cache
def _problem_of(platform: str) -> str | None:
    """Return why a platform cannot be used; `None` if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # GLFW's errors are warnings
            context = importlib.import_module(f"mujoco.{platform}").GLContext(8, 8)
            context.make_current()
            context.free()
    except Exception as error:  # noqa: BLE001  # each library has its own classes, down to AttributeError
        return f"{type(error).__name__} {str(error).splitlines()[0] if str(error) else ''}".strip()
    return None
