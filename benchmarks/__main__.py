"""Command line of the benchmarks.

python -m benchmarks                         list the cases and their options
python -m benchmarks NAME ... [OPTION=VALUE ...]
python -m benchmarks fleet workloads=cheap,image sizes=8,64 --rounds 5 --json fleet.json --plot fleet.png
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Result, Session, parse_options, start
from benchmarks.cases import CASES
from benchmarks.report import machine_line, misses_floor, plot, read_json, table, write_json, write_page

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases; return 1 if `--strict` was given and a ratio is below its floor."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="NAME | OPTION=VALUE", help="cases to run, and options of theirs")
    parser.add_argument("--rounds", type=int, help="rounds of a comparison, or seeds of a training")
    parser.add_argument("--seconds", type=float, help="duration of one measurement")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures; trainings in FILE are not repeated"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures into a .png, .pdf or .svg file")
    parser.add_argument("--write", action="store_true", help="replace the tables of the documentation")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a ratio is below its floor")
    args = parser.parse_intermixed_args(arguments)
    names = [word for word in args.words if "=" not in word]
    if not names:
        _list()
        return 0
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"unknown case {', '.join(unknown)}; the cases are {', '.join(CASES)}")
    pairs = [tuple(word.split("=", 1)) for word in args.words if "=" in word]
    try:
        plan = [(CASES[name], _options(CASES[name], pairs)) for name in names]
    except ValueError as error:
        parser.error(str(error))
    known = {name for case, _ in plan for name in case.options()}
    if unknown := [name for name, _ in pairs if name not in known]:
        parser.error(f"no chosen case has the option {', '.join(unknown)}; the options are {', '.join(sorted(known))}")
    return _run(plan, args)


def _options(case: Case, pairs: Sequence[Any]) -> dict[str, Any]:
    try:
        return parse_options(case.options(), pairs)
    except ValueError as error:
        raise ValueError(f"invalid option of {case.name}: {error}") from error


def _run(plan: Sequence[tuple[Case, dict[str, Any]]], args: argparse.Namespace) -> int:
    before = read_json(args.json) if args.json is not None and args.json.exists() else []
    results: list[Result] = []
    for case, options in plan:
        results.append(result := _begin(case, options, before))

        def save() -> None:
            if args.json is not None:
                write_json(args.json, results)

        case.load()(Session(result, args.rounds or case.rounds, args.seconds or case.seconds, save), **options)
        save()
        sys.stderr.write("\n")
        print(f"{case.describe()}\n\n{table(case, result)}\n{machine_line(result)}\n", flush=True)
        if args.write:
            print(f"wrote the table into {write_page(case, result, ROOT)}")
    if args.plot is not None:
        plot(zip((case for case, _ in plan), results, strict=True), args.plot)
    missed = any(misses_floor(case, result) for (case, _), result in zip(plan, results, strict=True))
    return 1 if args.strict and missed else 0


def _begin(case: Case, options: dict[str, Any], before: Sequence[Result]) -> Result:
    """Return the result of the same case and options in the JSON file, or an empty one."""
    result = start(case, options, dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))
    for one in before:
        if (one.case, _plain(one.options)) == (case.name, _plain(options)):
            return one
    return result


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _list() -> None:
    width = max(map(len, CASES))
    for case in CASES.values():
        print(f"{case.name:{width}}  {case.describe()}")
    print("\nOptions of a case are the keyword arguments of its function, for example `sizes=8,64`.")


if __name__ == "__main__":
    sys.exit(main())
