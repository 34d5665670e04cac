"""What numba says of a kernel it cannot compile, in the words of the person who wrote the kernel."""

from __future__ import annotations

import linecache
import re

from envfleet.kernels.kernel import KernelSpec

_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

_ADVICE = (
    (
        r"Untyped global name '(?P<name>\w+)'.*<class 'type'>",
        "uses the class {name}: refer to functions and constants of a module, not to attributes of a class",
    ),
    (
        r"Untyped global name '(?P<name>\w+)'",
        "uses {name}, which cannot be compiled: keep it out of reset, step and observe, or turn it into numbers",
    ),
    (
        r"Field '(?P<name>\w+)' was not found in record with fields \((?P<fields>[^)]*)\)",
        "uses the field {name!r}, which does not exist; fields are: {fields}",
    ),
    (r"NameError: name '(?P<name>\w+)' is not defined", "uses {name}, which is not defined"),
    (
        r"Unknown attribute '(?P<name>\w+)' of type Record",
        "uses {name!r}, which neither the state, nor the parameters, nor the generator have",
    ),
    (
        r"Cannot unify (?P<one>[\w(),. ]+?) and (?P<two>[\w(),. ]+?) for '(?P<name>[\w.]+)'",
        "gives {name} values of two types, {one} and {two}: make them one, as with float(...)",
    ),
    (r"No implementation of function (?P<name>.+?) found", "calls {name} with types it does not take"),
    (
        r"The use of (?P<name>\w+) is not supported|Use of unsupported (?P<other>.+)",
        "uses {name}, which compiled code does not have",
    ),
)


def explain(spec: KernelSpec, error: Exception) -> str:
    """Say what cannot be compiled, where, and what to do.

    Args:
        spec: The kernel.
        error: Numba's.
    """
    text = _ANSI.sub("", str(error))
    place = f"{spec.name} cannot be compiled{_describe_place(text)}"
    for pattern, advice in _ADVICE:
        found = re.search(pattern, text, re.DOTALL)
        if found:
            fields = {key: value or "that" for key, value in found.groupdict().items()}
            return f"{place}: it {advice.format(**fields)}"
    first = next((line for line in text.splitlines() if line.strip() and "Failed in " not in line), text)
    return f"{place}: {first.strip()} (scalar Python with numbers, arrays and math works; numba's own words are below)"


def _describe_place(text: str) -> str:
    """The innermost line that numba names and that is the user's."""
    places = [match.groupdict() for match in _PLACE.finditer(text) if "envfleet" not in match["file"]]
    if not places:
        return ""
    file, line = places[-1]["file"], int(places[-1]["line"])
    source = linecache.getline(file, line).strip()
    return f", {file}:{line}" + (f" (`{source}`)" if source else "")
