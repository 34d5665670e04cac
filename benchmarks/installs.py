"""Cost of an installation: size and time of every extra, each in a fresh virtual environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

from benchmarks.case import Record, Session

ROOT = Path(__file__).parents[1]
_BROUGHT = ("pip", "setuptools", "_distutils_hack")  # by the virtual environment itself
_PULLS_TORCH = ("peers", "train", "search", "ray")


def measure_installs(
    session: Session,
    *,
    extras: tuple[str, ...] = (),
    cpu_torch: str = "torch",
    full: tuple[str, ...] = ("train",),
) -> None:
    """Size, seconds and packages of each extra, installed by pip without its cache.

    Args:
        session: Where figures go.
        extras: Sets of extras, joined by `+`; all extras, and none, by default.
        cpu_torch: Arguments of pip that install the CPU build of torch before extras that need torch; add `--index-url`
            unless pip's index has that build.
        full: Extras to install once more, with the torch that pip chooses by itself.
    """
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    chosen = extras or ("", "cli+kernels", *(name for name in known if name != "dev"))
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT)]
        subprocess.run(build, check=True, capture_output=True)
        wheel = next(Path(folder).glob("*.whl"))
        for names in chosen:
            parts = names.split("+")
            setting = "envfleet" + (f"[{','.join(parts)}]" if names else "")
            first = cpu_torch if any(part in _PULLS_TORCH for part in parts) else ""
            _measure(session, setting, "with the CPU build of torch" if first else "", first, wheel, Path(folder))
            if names in full:
                _measure(session, setting, "with torch for CUDA, as pip chooses", "", wheel, Path(folder))


def _measure(session: Session, setting: str, label: str, first: str, wheel: Path, folder: Path) -> None:
    session.progress(f"{setting} {label}")
    home = folder / "venv"
    venv.create(home, with_pip=True)
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-warn-conflicts"]
    start_s = time.perf_counter()
    if first:
        subprocess.run([*install, *first.split()], check=True, capture_output=True)
    subprocess.run([*install, setting.replace("envfleet", str(wheel), 1)], check=True, capture_output=True)
    elapsed_s = time.perf_counter() - start_s
    site = next((home / "lib").glob("python*/site-packages"))
    packages = len({path.name for path in site.glob("*.dist-info")}) - 1 - (site / "setuptools").is_dir()
    brought = [path for path in site.iterdir() if path.name.partition("-")[0] in _BROUGHT]
    size = _size_bytes(site) - sum(map(_size_bytes, brought))
    session.add(Record(setting, label, [round(size / 1e6)], {"seconds": f"{elapsed_s:.0f}", "packages": str(packages)}))
    shutil.rmtree(home)


def _size_bytes(path: Path) -> int:
    """Return the size of all files of a folder, byte code included."""
    return sum(one.lstat().st_size for one in (path, *path.rglob("*")) if one.is_file())
