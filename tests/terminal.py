"""What a command shows in a terminal."""

from __future__ import annotations

import re

TERMINAL = {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "80", "TTY_COMPATIBLE": "1"}
"""Environment in which Rich takes any file for a terminal of 80 columns."""

_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def drawn_lines(written: str) -> list[str]:
    """Return all lines that were drawn, without control codes; a line that was drawn again stands there twice."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", _CODE.sub("", written)) if line.strip()]
