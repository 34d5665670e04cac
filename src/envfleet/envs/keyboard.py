"""A person at the keyboard in any environment that says which keys mean what."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envfleet.errors import InvalidArgument


class Keyboard:
    """Acts by the keys that are pressed in a pygame window.

    Args:
        env: Has `get_keys_to_action()`, as Gymnasium's environments for people do: a dict from keys (pygame's codes,
            a letter, or a tuple of those) to actions; `()` stands for no key.
        name: Of the environment, for the error.

    Raises:
        InvalidArgument: It does not say which keys mean what.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        keys = getattr(env.unwrapped, "get_keys_to_action", None)
        if keys is None:
            raise InvalidArgument(
                f"{name} does not say which keys mean what: give its environment a method get_keys_to_action() that "
                "returns a dict from keys to actions"
            )
        self._actions = {_codes(key): action for key, action in keys().items()}
        self._known = frozenset[int]().union(*self._actions)
        if frozenset() not in self._actions:
            raise InvalidArgument(f"get_keys_to_action() of {name} has no action for (), which is no key: add it")

    def act(self, observation: Any) -> Any:
        """Return the action of the keys that are pressed; that of no key where they mean nothing together."""
        import pygame

        pygame.event.pump()
        pressed = pygame.key.get_pressed()
        down = frozenset(code for code in self._known if pressed[code])
        return self._actions.get(down, self._actions[frozenset()])


def _codes(key: Any) -> frozenset[int]:
    keys = key if isinstance(key, (tuple, str)) else (key,)
    return frozenset(ord(one) if isinstance(one, str) else int(one) for one in keys)
