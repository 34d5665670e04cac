"""A window that somebody sees, and a person at its keyboard, in any environment that says which keys mean what."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import gymnasium as gym

from envfleet.errors import InvalidArgument, MissingDependency

# What SDL draws with where nobody would see it, unless one of these variables asks for it.
_UNSEEN_DRIVERS = ("offscreen", "dummy")
_DRIVER_VARIABLES = ("SDL_VIDEODRIVER", "SDL_VIDEO_DRIVER")


def load_pygame() -> Any:
    """Import pygame.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        import pygame
    except ImportError as error:
        raise MissingDependency(
            f"pictures and the keyboard need pygame, which cannot be imported here ({error}): "
            "pip install 'envfleet[hockey]'"
        ) from error
    return pygame


def require_display() -> None:
    """Check that somebody can see a window: where there is no display SDL draws unseen, and says nothing.

    Raises:
        InvalidArgument: Nobody can; unless a variable of SDL asks for such a driver.
    """
    pygame = load_pygame()
    is_open = pygame.display.get_init()
    try:
        pygame.display.init()
    except pygame.error as error:
        raise no_window(error) from error
    driver = pygame.display.get_driver()
    if not is_open:
        pygame.display.quit()
    if driver in _UNSEEN_DRIVERS and not any(map(os.environ.get, _DRIVER_VARIABLES)):
        raise no_window("there is no display")


def no_window(why: object) -> InvalidArgument:
    """Return the error for a window that cannot be opened."""
    return InvalidArgument(
        f"no window can be opened here ({why}): render with render_mode='rgb_array' and save the frames, as envfleet "
        "watch CHECKPOINT --out game.gif does"
    )


def pressed_keys(keys: Iterable[int]) -> list[int]:
    """Return those keys, given by pygame's codes, that are pressed in the window, in the given order.

    Raises:
        InvalidArgument: There is no window yet, or no display to show it on.
    """
    pygame = load_pygame()
    if not pygame.display.get_init():
        raise InvalidArgument(
            "there is no window whose keyboard could be looked at: make the environment with render_mode='human' "
            "and reset it first"
        )
    require_display()
    pygame.event.pump()
    pressed = pygame.key.get_pressed()
    return [code for code in keys if pressed[code]]


class Keyboard:
    """Acts by the keys that are pressed in a pygame window.

    Args:
        env: The environment that is played in. As in Gymnasium, its `get_keys_to_action()` returns actions by keys:
            pygame's codes, a letter, or a tuple of those; `()` stands for no key.
        name: Of the environment, for the error.

    Raises:
        InvalidArgument: It does not say which keys mean what.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        if not env.has_wrapper_attr("get_keys_to_action"):
            raise InvalidArgument(
                f"{name} does not say which keys mean what: give its environment a method get_keys_to_action() "
                "that returns a dict from keys to actions"
            )
        self._actions = {_codes(key): action for key, action in env.get_wrapper_attr("get_keys_to_action")().items()}
        self._known = frozenset[int]().union(*self._actions)
        if frozenset() not in self._actions:
            raise InvalidArgument(f"get_keys_to_action() of {name} has no action for (), which is no key: add it")

    def act(self, observation: Any) -> Any:
        """Return the action of the keys that are pressed; that of no key where they mean nothing together.

        Raises:
            InvalidArgument: There is no window yet, or no display to show it on.
        """
        return self._actions.get(frozenset(pressed_keys(self._known)), self._actions[frozenset()])


def _codes(key: Any) -> frozenset[int]:
    keys = key if isinstance(key, (tuple, str)) else (key,)
    return frozenset(ord(one) if isinstance(one, str) else int(one) for one in keys)
