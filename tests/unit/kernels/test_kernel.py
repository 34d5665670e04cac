"""Names and fields of kernels."""

from __future__ import annotations

import pytest

from envfleet.errors import KernelError
from envfleet.kernels.kernel import find_kernel
from envfleet.native.fields import read_fields


def test_names_of_kernels() -> None:
    assert find_kernel("tests.unit.kernels.samples:Walker").__name__ == "Walker"
    for name in ("tests.unit.kernels.samples:Nobody", "no_such_module:X", "nothing"):
        with pytest.raises(KernelError, match=r"write it as 'package\.module:Name'"):
            find_kernel(name)


def test_what_python_itself_puts_into_a_class_is_no_field() -> None:
    """From 3.13 on, the number of its first line."""
    declaration = type("State", (), {"__annotations__": {"x": float}, "__firstlineno__": 7})
    assert read_fields(declaration, "Mine.State", need_defaults=False).names == ("x",)
