"""Virtual environments with the packages of some extras of envfleet and no others."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

_ROOT = Path(__file__).parents[2]


def make_environment(folder: Path, extras: tuple[str, ...]) -> Path:
    """Make a virtual environment with envfleet and the packages of some extras; returns its `python`.

    The packages are those of the running environment, as links: nothing is downloaded.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=240)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    for name in _closure("envfleet", extras):
        for file in _top_level(distribution(name)):
            link = site / file.name
            if not link.exists() and (name != "envfleet" or file.suffix == ".dist-info"):
                link.symlink_to(file)
    (site / "envfleet.pth").write_text(f"{_ROOT / 'src'}\n")
    return folder / "bin" / "python"


def _closure(name: str, extras: tuple[str, ...]) -> set[str]:
    """Return the names of all distributions that a distribution needs with some extras."""
    wanted, known = [(name, frozenset(extras))], set[tuple[str, frozenset[str]]]()
    while wanted:
        pair = wanted.pop()
        if pair in known:
            continue
        known.add(pair)
        for line in distribution(pair[0]).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *pair[1])
            ):
                wanted.append((requirement.name, frozenset(requirement.extras)))
    return {name for name, _ in known}


def _top_level(distribution: Distribution) -> set[Path]:
    """Return the files and folders of a distribution that lie directly in `site-packages`."""
    names = {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}
    return {Path(str(distribution.locate_file(name))) for name in names}
