"""A user's own numba code, compiled before and after kernels are; prints what it returns or raises as JSON."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core.registry import cpu_target
from numba.np import arrayobj

DTYPE = np.dtype([("normal", "f8"), ("random", "i8"), ("choice", "u1"), ("state_hi", "u8")])


def read_fields(records: Any) -> Any:
    return records[0].normal + records[0].random + records[0].choice


def write_fields(records: Any) -> None:
    records[0].normal = 2
    records[0].choice += 1


def call_field(records: Any) -> Any:
    return records[0].normal()


def assign_slice(target: Any, source: Any) -> None:
    target[:] = source


def clip_number(x: float) -> Any:
    return np.clip(x, 0.0, 1.0)


def clip_array(x: Any) -> Any:
    return np.clip(x, 1, 4)


def convert_bool(x: bool) -> Any:
    return float(x)


def subtract_bytes(x: Any) -> Any:
    return x[0] - x[1]


def invert(x: bool) -> Any:
    return ~x


def add_up(x: Any) -> Any:
    return x.sum(), np.diff(x)[0], np.cumsum(x)[-1], x.mean()


def narrow(x: Any, y: float) -> None:
    x[0].random = y


RECORDS = np.zeros(1, DTYPE)
BYTES = np.array([200, 201, 100], np.uint8)
CALLS: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (read_fields, (RECORDS,)),
    (write_fields, (RECORDS,)),
    (call_field, (RECORDS,)),
    (assign_slice, (np.zeros(3), np.ones(2))),
    (clip_number, (2.0,)),
    (clip_array, (np.arange(6),)),
    (convert_bool, (True,)),
    (subtract_bytes, (BYTES,)),
    (invert, (True,)),
    (add_up, (BYTES,)),
    (narrow, (RECORDS, 1.5)),
)


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[str]:
    compiled, arguments = numba.njit(function), copy.deepcopy(arguments)
    try:
        result = repr(compiled(*arguments))
    except Exception as error:  # noqa: BLE001  # numba's own of all kinds
        result = f"{type(error).__name__}: {' '.join(str(error).split())}"  # numba indents more each time
    left = [one.tolist() for one in arguments if isinstance(one, np.ndarray)]
    return [function.__name__, result, repr(compiled.signatures), repr(left)]


def look() -> dict[str, Any]:
    """Return the results of the code, and the parts of numba that kernels might change."""
    typing = cpu_target.typing_context
    return {
        "calls": [attempt(*call) for call in CALLS],
        "typing": sorted(vars(typing)),
        "target": sorted(vars(cpu_target.target_context)),
        "records": [type(one).__name__ for one in typing._attributes[numba.types.Record]],
        "slices": repr(arrayobj.raise_with_shape_context.__module__),
        "functions": [len(typing._lookup_global(function).templates) for function in (np.clip, float)],
    }


def main() -> None:
    before = look()
    from tests.unit.kernels.test_kernel_language import Dealer

    import envfleet

    with envfleet.make(Dealer, 2, backend="kernel") as fleet:
        fleet.reset(seed=0)
        fleet.rollout("random", 4)
    json.dump([before, look()], sys.stdout)


if __name__ == "__main__":
    main()
