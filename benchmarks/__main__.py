"""`python -m benchmarks`: the full comparisons, into build/benchmarks unless another folder is given.

Options are handed to both, `benchmarks/fleet.py` and `benchmarks/kernels.py`, so only those that both have: `--quick`,
`--strict`, `--seconds`.
"""

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent

if all(argument.startswith("-") for argument in sys.argv[1:]):
    sys.argv.insert(1, "build/benchmarks")
sys.path.insert(0, str(FOLDER))  # as if each were run as a script
codes = []
for name in ("fleet.py", "kernels.py"):
    try:
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    except SystemExit as end:
        codes.append(end.code or 0)
sys.exit(max(codes, default=0))
