"""The command line: `envfleet`, with its commands in the modules of this package."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; the console script `envfleet`."""
    try:
        from envfleet.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"typer", "rich"}:
            raise
        sys.stderr.write(
            f"The envfleet command needs {package}, which is not installed.\n"
            "Install it with: pip install 'envfleet[cli]' (or 'envfleet[cli,peers]' to measure other libraries, too).\n"
        )
        sys.exit(2)
    # As with python -m: an environment in the current folder is found by its module's name.
    if "" not in sys.path:
        sys.path.insert(0, "")
    app()
    sys.exit(0)
