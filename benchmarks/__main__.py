"""`python -m benchmarks`: the full comparison, into build/benchmarks unless another folder is given."""

import runpy
import sys
from pathlib import Path

if all(argument.startswith("-") for argument in sys.argv[1:]):
    sys.argv.insert(1, "build/benchmarks")
runpy.run_path(str(Path(__file__).with_name("fleet.py")), run_name="__main__")
