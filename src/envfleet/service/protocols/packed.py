"""Bounds of MessagePack bodies, checked before they are decoded.

Bytes are cheap to send and expensive to decode: an element of one byte becomes a Python object. Arrays are extensions,
one element each, so that a body has few of them whatever the number of sub-environments.
"""

from __future__ import annotations

import struct

from envfleet.errors import WireError

MOST_ELEMENTS = 100_000
_MOST_LEVELS = 16

_FIXED = [0] * 256
"""Size of an element by its first byte, in bytes; 0 for texts, arrays, maps and extensions."""
for _first in range(256):
    if _first < 0x80 or _first >= 0xE0 or _first in (0xC0, 0xC2, 0xC3):
        _FIXED[_first] = 1
    elif 0xA0 <= _first < 0xC0:
        _FIXED[_first] = 1 + (_first & 31)
for _first, _size in zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True):
    _FIXED[_first] = _size
for _first, _size in zip(range(0xD4, 0xD9), (3, 4, 6, 10, 18), strict=True):
    _FIXED[_first] = _size
_LENGTHS = {
    0xC4: (">B", 2),  # bytes
    0xC5: (">H", 3),
    0xC6: (">I", 5),
    0xC7: (">B", 3),  # extensions
    0xC8: (">H", 4),
    0xC9: (">I", 6),
    0xD9: (">B", 2),  # texts
    0xDA: (">H", 3),
    0xDB: (">I", 5),
}
_CONTAINERS = {0xDC: (">H", 3, 1), 0xDD: (">I", 5, 1), 0xDE: (">H", 3, 2), 0xDF: (">I", 5, 2)}


def check_packed(body: bytes) -> None:
    """Check the number of elements and levels of a body; whether it is MessagePack at all is the decoder's to check.

    Raises:
        WireError: It has too many.
    """
    position, left, total = 0, 1, 1
    levels: list[int] = []  # elements left in the containers around
    try:
        while True:
            while not left:
                if not levels:
                    return
                left = levels.pop()
            left -= 1
            first = body[position]
            size = _FIXED[first]
            if size:
                position += size
                continue
            if first in _LENGTHS:
                form, head = _LENGTHS[first]
                position += head + int(struct.unpack_from(form, body, position + 1)[0])
                continue
            count, head = _count(body, first, position)
            position += head
            total += count
            levels.append(left)
            left = count
            if total > MOST_ELEMENTS or len(levels) > _MOST_LEVELS:
                raise WireError(
                    f"the body has more than {MOST_ELEMENTS:,} elements or {_MOST_LEVELS} levels: send numbers as "
                    "arrays, not as lists"
                )
    except (IndexError, KeyError, struct.error):
        return  # cut off, or not MessagePack


def _count(body: bytes, first: int, position: int) -> tuple[int, int]:
    """Return how many elements a list or map has, and the bytes of its head."""
    if 0x80 <= first < 0xA0:
        return ((first & 15) * (2 if first < 0x90 else 1)), 1
    form, head, each = _CONTAINERS[first]
    return int(struct.unpack_from(form, body, position + 1)[0]) * each, head
