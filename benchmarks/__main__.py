"""`python -m benchmarks`: the full comparisons, into build/benchmarks unless another folder is given.

Options are handed to both, `benchmarks/fleet.py` and `benchmarks/kernels.py`, so only those that both have: `--quick`,
`--strict`, `--seconds`. Each runs in a process of its own; one that fails does not keep the other from running.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = ("fleet.py", "kernels.py")


def main(arguments: list[str]) -> int:
    """Run all of them; 0 if none failed."""
    if all(argument.startswith("-") for argument in arguments):
        arguments = ["build/benchmarks", *arguments]
    codes = {
        name: subprocess.run([sys.executable, FOLDER / name, *arguments], check=False).returncode for name in NAMES
    }
    failed = {name: code for name, code in codes.items() if code != 0}
    for name, code in failed.items():
        print(f"benchmarks/{name} ended with {code}: see what it printed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
