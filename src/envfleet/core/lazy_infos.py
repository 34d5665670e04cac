"""Infos that are built only if somebody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any, Self

from envfleet.core.episodes import EndedEpisodes


class _Unbuilt:
    """Key of the one entry of infos not built yet; see `LazyInfos`."""


_UNBUILT: Any = _Unbuilt()
_STATISTICS_WRAPPER = "gymnasium.wrappers.vector.common"


class LazyInfos(dict[str, Any]):
    """The infos of one step: a dict that is built the first time somebody looks into it.

    Building happens once; if it raises, every look raises that error. Copies and pickles are plain dicts.

    Until then the dict has one hidden entry, so that code which asks CPython for the bare size of a dict (the `json`
    module) does not take it for empty, and goes on to the methods.

    Args:
        build: Builds the infos. Without it the dict has the `entries`, because Gymnasium's array conversions make infos
            anew as `type(infos)(**entries)`.
        ended: The episodes that ended in this step, for the entries `"episode"` and `"_episode"`, unless a
            sub-environment gives an `"episode"` of its own.
        **entries: What the dict has if there is nothing to build.

    Examples:
        >>> infos = LazyInfos(lambda: {"score": 3})
        >>> "score" in infos, infos | {"lives": 1}
        (True, {'score': 3, 'lives': 1})
    """

    __slots__ = ("_build", "_ended", "_error", "_statistics")
    _build: Callable[[], dict[str, Any]] | None  # None once that was done
    _ended: EndedEpisodes | None
    _error: Exception | None
    _statistics: dict[str, Any] | None  # the "episode" entry that is ours

    def __init__(
        self,
        build: Callable[[], dict[str, Any]] | None = None,
        ended: EndedEpisodes | None = None,
        /,
        **entries: Any,
    ) -> None:
        self._build = build
        self._ended = ended
        self._error = None
        if build is None:
            self._statistics = None
            dict.update(self, entries)
        else:
            dict.__setitem__(self, _UNBUILT, None)

    def _look(self) -> None:
        """Build, unless that was done."""
        build = self._build
        if build is None:
            return
        if self._error is not None:
            raise self._error
        try:
            built = build()
            self._statistics = None
            if self._ended is not None and "episode" not in built and "_episode" not in built:
                built["episode"], built["_episode"] = self._ended.entry()
                self._statistics = built["episode"]
        except Exception as error:
            self._error = error
            raise
        self._build = self._ended = None
        dict.clear(self)
        dict.update(self, built)

    def __contains__(self, key: object) -> bool:
        if self._build is not None:
            self._look()
        # Gymnasium's vector RecordEpisodeStatistics raises if "episode" is there before it writes its own. A fleet
        # offers that entry to everybody, so to this one asker it is not there, and what it then writes replaces ours.
        # There is no way to see the asker but its frame.
        if (
            self._statistics is not None
            and key in {"episode", "_episode"}
            and dict.get(self, "episode") is self._statistics
            and sys._getframe(1).f_globals.get("__name__") == _STATISTICS_WRAPPER  # noqa: SLF001
        ):
            return False
        return dict.__contains__(self, key)

    def __getitem__(self, key: str) -> Any:
        if self._build is not None:
            self._look()
        return dict.__getitem__(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._look()
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: str) -> None:
        self._look()
        dict.__delitem__(self, key)

    def __iter__(self) -> Iterator[str]:
        # Having its own iterator also keeps dict(infos), {**infos} and f(**infos) from reading past these methods.
        self._look()
        return dict.__iter__(self)

    def __reversed__(self) -> Iterator[str]:
        self._look()
        return dict.__reversed__(self)

    def __len__(self) -> int:
        self._look()
        return dict.__len__(self)

    def __eq__(self, other: object) -> bool:
        self._look()
        return dict.__eq__(self, dict(other) if isinstance(other, LazyInfos) else other)

    def __ne__(self, other: object) -> bool:
        self._look()
        return dict.__ne__(self, dict(other) if isinstance(other, LazyInfos) else other)

    __hash__ = None  # as a dict

    def __or__(self, other: dict[Any, Any]) -> dict[Any, Any]:
        return dict.__or__(dict(self), other)

    def __ror__(self, other: dict[Any, Any]) -> dict[Any, Any]:
        return dict.__or__(other, dict(self))

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # one form of two
        self.update(other)
        return self

    def __repr__(self) -> str:
        self._look()
        return dict.__repr__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        return self.__reduce__()

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of the entries."""
        return dict(self)

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # the view of a dict, under its general name
        """Return a view of the keys."""
        self._look()
        return dict.keys(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # as above
        """Return a view of the values."""
        self._look()
        return dict.values(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # as above
        """Return a view of the entries."""
        self._look()
        return dict.items(self)

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the value of `key`, or `default`."""
        if self._build is not None:
            self._look()
        return dict.get(self, key, default)

    def pop(self, key: str, /, *default: Any) -> Any:
        """Remove `key` and return its value, or `default` if one is given."""
        self._look()
        return dict.pop(self, key, *default)

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last entry."""
        self._look()
        return dict.popitem(self)

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """Return the value of `key`, which becomes `default` if there was none."""
        self._look()
        return dict.setdefault(self, key, default)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Take over the entries of a mapping, of pairs, or of keywords."""
        self._look()
        dict.update(self, *args, **kwargs)

    def clear(self) -> None:
        """Remove all entries."""
        self._look()
        dict.clear(self)
