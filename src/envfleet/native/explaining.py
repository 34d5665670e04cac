"""Explanations of numba's errors for the author of the functions: the user's line, the reason and the fix.

Problem. Numba's errors are pages about its own types and passes; the user's line is somewhere in them, or missing.

Solution. The innermost line that is not numba's, generated or of this package is the place. The first pattern of
`_ADVICE` that matches the text gives the reason and the fix; otherwise numba's first sentence follows the place.

What remains. The texts are numba's and change with its versions; tests compile an example of each.
"""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path
from typing import Any

_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)|Raised from (?P<file_>.+?) \((?P<line_>\d+)\)')
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GENERATED = re.compile(r"-[0-9a-f]{24}$")
_OURS = (Path(__file__).parent, Path(__file__).parents[1] / "kernels")

OURS = "envfleet: it "
"""Prefix of compile errors that this package raises."""

READ_ONLY = (
    "writes to a parameter, an action, a constant or, in observe, the state, which are read-only there: make it a "
    "field of the state, and write that in reset and step"
)
_ADVICE = (
    (OURS + r"(?P<rule>[^\n]+)", "{rule}"),
    (r"Cannot modify readonly array|an explicit output that is read-only", READ_ONLY),
    (r"choose_draw", "calls a method of `rng` with arguments that kernels do not have, such as size or dtype"),
    (
        r"exception_match",
        "catches exceptions by type, which compiled code does not support: check the value before, with `if`",
    ),
    (
        r"getitem\(Tuple\([^\n]*Dispatcher|getiter with [^\n]*Dispatcher",
        "takes a function from a tuple by a number that is not a constant: write `if` and `elif` around calls",
    ),
    (r"Untyped global name '(?P<name>any|all)'", "calls {name}: write a loop, or np.{name} of an array"),
    (r"Untyped global name 'reversed'", "calls reversed: count down, as in `for k in range(n - 1, -1, -1)`"),
    (r"Untyped global name '(?P<name>\w+)'", "calls {name}, which compiled code does not have: write a loop"),
    (r"`[^`\n]*:=[^`\n]*`.*Type of variable '\$", "assigns by `:=`, which fails here: assign on a separate line"),
    (r"UNPACK_EX", "unpacks by a star: take each part by its index"),
    (r"Unknown attribute '(?P<name>\w+)' of type int", "uses .{name}, but IntEnum members are numbers: leave it out"),
    (r"setitem\(array\([^\n]*, Tuple\(", "assigns a tuple of several types to an array: write a list"),
    (r'due to "TypeError: (?P<why>[^"]+)"', "calls a function wrongly: {why}"),
    (
        r"Can't unify return type from the following types: (?P<types>[^\n]+)",
        "returns {types} on different paths: return the same number of values, of the same types, on every path",
    ),
    (r"reshape\(\)|linking files", "reshapes what is not contiguous, as `out` on a GPU: write `out.flat[k] = …`"),
    (
        r"yield in a closure|use of yield",
        "has a generator expression, which compiled code does not support: write a loop",
    ),
    (r"IMPORT_NAME", "imports in a function, which compiled code does not support: import at the top of the module"),
    (
        r"Unknown attribute '(?P<name>\w+)' of type Module\(<module '(?P<module>[\w.]+)'",
        "uses {module}.{name}, which compiled code does not have: write it out, or see what NumPy has",
    ),
    (
        r"setitem\(Record\([^\n]*, Literal\[\w+\]\((?P<name>\w+)\), ",
        "assigns to the part {name} of `out`, an array: write its elements, as in `out[…][:] = values`",
    ),
    (
        r"Unknown attribute '(?P<name>\w+)' of type (?:nested)?array",
        "uses .{name} of an array, which compiled code does not have: write a loop, or see what NumPy has",
    ),
    (r"STORE_GLOBAL", "assigns to a global, which compiled code cannot change: keep it in a field of the state"),
    (r"NameError: name '(?P<name>\w+)' is not defined", "uses {name}, which is not defined"),
    (
        r"Cannot unify (?P<one>[\w(),. ]+?) and (?P<two>[\w(),. ]+?) for '(?P<name>[$\w]+)[\w.]*'",
        "assigns values of two types to {name}, {one} and {two}: convert one, as with float(...)",
    ),
    (
        r"No implementation of function .+? found for signature:\s+>>> (?P<call>.+?)\n",
        "calls {call}, which compiled code does not have for these types",
    ),
    (
        r"(?:The use of|Use of unsupported) (?P<name>.+?)(?: is not supported| found| or unsupported use|\n|$)",
        "uses {name}, which compiled code does not have",
    ),
)


def describe_line(file: str, line: int, function: str = "") -> str:
    """Describe a line of a user's code, with its text if the file is readable."""
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}" + (f", in {function}" if function else "") + (f" (`{text}`)" if text else "")


def explain(name: str, error: Exception) -> str:
    """Explain what numba failed to compile, where, and what to do.

    Args:
        name: Name of the class that has the functions.
        error: Numba's error.
    """
    text = _ANSI.sub("", str(error))
    place = f"{name} cannot be compiled{_describe_place(text) or _find_line(error)}"
    for pattern, advice in _ADVICE:
        match = re.search(pattern, f"{place}\n{text}", re.DOTALL)
        if match:
            # Expressions without a name in the source have names by numba, which begin with "$".
            named = match.groupdict().items()
            fields = {key: re.sub(r"^\$.*", "an expression", value or "that") for key, value in named}
            return f"{place}: it {advice.format(**fields)}"
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and "Failed in " not in line), type(error).__name__)
    return f"{place}: {first} (numbers, arrays and math can be compiled; numba's full message is above)"


def _find_line(error: Exception) -> str:
    """Return the line of the statement at which numba failed without naming one."""
    lines = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for statement in (frame.f_locals.get(name) for name in ("inst", "constraint", "expr", "self")):
            place: Any = getattr(statement, "loc", None)
            if isinstance(getattr(place, "filename", None), str) and _is_of_user(Path(place.filename)):
                lines.append(f", {describe_line(place.filename, place.line)}")
    return lines[-1] if lines else ""


def _is_of_user(file: Path) -> bool:
    return file.parent not in _OURS and not _GENERATED.search(file.parent.name) and "numba" not in file.parts


def _describe_place(text: str) -> str:
    """Return the innermost of the user's lines that numba names."""
    for match in _PLACE.finditer(text):  # the innermost is first
        file, line = Path(match["file"] or match["file_"]).resolve(), int(match["line"] or match["line_"])
        if _is_of_user(file):
            return f", {describe_line(str(file), line)}"
    return ""
