"""Keyboard control in a visible window, for any environment with `get_keys_to_action`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import gymnasium as gym

from envfleet.errors import InvalidArgument
from envfleet.extras import missing

# SDL's invisible video drivers, used only if one of these variables selects them.
_UNSEEN_DRIVERS = ("offscreen", "dummy")
_DRIVER_VARIABLES = ("SDL_VIDEODRIVER", "SDL_VIDEO_DRIVER")


def load_pygame() -> Any:
    """Import pygame.

    Raises:
        MissingDependency: pygame is not installed.
    """
    try:
        import pygame
    except ImportError as error:
        raise missing("rendering", error) from error
    return pygame


def require_display() -> None:
    """Check that a window would be visible; without a display SDL silently draws to an invisible one.

    Raises:
        InvalidArgument: The machine lacks a display, and no SDL variable selects an invisible driver.
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
    """Return the keys (pygame's codes) that are pressed in the window, in the given order.

    Raises:
        InvalidArgument: The window is not open yet, or the machine lacks a display.
    """
    pygame = load_pygame()
    if not pygame.display.get_init():
        raise InvalidArgument(
            "cannot read the keyboard without a window: make the environment with render_mode='human' "
            "and reset it first"
        )
    require_display()
    pygame.event.pump()
    pressed = pygame.key.get_pressed()
    return [code for code in keys if pressed[code]]


class Keyboard:
    """Player that acts by the keys pressed in a pygame window.

    Args:
        env: Environment of the game. As in Gymnasium, its `get_keys_to_action()` returns actions by keys: pygame's
            codes, a letter, or a tuple of those; `()` means that no key is pressed.
        name: Name of the environment, for the error.

    Raises:
        InvalidArgument: The environment does not define keys.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        if not env.has_wrapper_attr("get_keys_to_action"):
            raise InvalidArgument(
                f"{name} does not define keys: give its environment a method get_keys_to_action() that returns a "
                "dict from keys to actions"
            )
        self._actions = {_codes(key): action for key, action in env.get_wrapper_attr("get_keys_to_action")().items()}
        self._known = frozenset[int]().union(*self._actions)
        if frozenset() not in self._actions:
            raise InvalidArgument(
                f"get_keys_to_action() of {name} lacks the key (), the action without a pressed key: add it"
            )

    def act(self, observation: Any) -> Any:
        """Return the action of the pressed keys; for unknown combinations, the action without keys.

        Raises:
            InvalidArgument: The window is not open yet, or the machine lacks a display.
        """
        return self._actions.get(frozenset(pressed_keys(self._known)), self._actions[frozenset()])


def _codes(key: Any) -> frozenset[int]:
    keys = key if isinstance(key, (tuple, str)) else (key,)
    return frozenset(ord(one) if isinstance(one, str) else int(one) for one in keys)
