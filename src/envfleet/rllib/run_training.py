"""`python -m envfleet.rllib.run_training` is the command `envfleet rllib train`."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command with the arguments of this process."""
    from envfleet.cli import main as run_command

    sys.argv[1:1] = ["rllib", "train"]
    run_command()


if __name__ == "__main__":
    main()
