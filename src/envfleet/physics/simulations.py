"""MuJoCo's batched simulation (`mjbatch.h`), called through its public C API.

The Python class `mujoco.batch.Batch` steps simulations but runs no function of the caller's on them; the C function
`mjb_apply` does. Each call loads a simulation's state into an `mjData` of one of MuJoCo's threads, runs the function,
and saves the state.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import importlib.metadata
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, KernelError, MissingDependency

OLDEST = (3, 17)
"""First version of MuJoCo that has `mjbatch.h`."""

_SEARCHED_WORDS, _CHUNK_WORDS = 200_000, 64
"""Number of words of an `mjData` or `mjModel` in which a field is looked for, and of those read at once."""


def has_batches() -> bool:
    """Return whether a MuJoCo with batched simulation is installed."""
    try:
        version = importlib.metadata.version("mujoco")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= OLDEST


def import_mujoco() -> Any:
    """Import MuJoCo.

    Raises:
        MissingDependency: It is missing or too old.
    """
    if not has_batches():
        raise MissingDependency("tasks need MuJoCo 3.17 or newer: pip install 'envfleet[mujoco]'")
    import mujoco
    import mujoco.batch

    return mujoco


_printed = set[str]()
"""Warnings of MuJoCo's compiler that `loading` has printed."""


@contextlib.contextmanager
def loading() -> Iterator[Any]:
    """Import MuJoCo and print each warning about models once, instead of for each model; a handler of the user's stays.

    Raises:
        MissingDependency: MuJoCo is missing or too old.
    """
    mujoco = import_mujoco()
    if mujoco.get_mju_user_warning() is not None:
        yield mujoco
        return
    mujoco.set_mju_user_warning(_print_once)
    try:
        yield mujoco
    finally:
        mujoco.set_mju_user_warning(None)


def _print_once(text: str) -> None:
    if text not in _printed:
        _printed.add(text)
        sys.stderr.write(f"WARNING: {text}\n")


class _Config(ctypes.Structure):
    _fields_ = (("nthread", ctypes.c_int), ("persistent", ctypes.c_ubyte))


_POINTER, _INT = ctypes.c_size_t, ctypes.c_int
_INT_POINTER = ctypes.POINTER(ctypes.c_int)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mjb_makeBatch": (_POINTER, (_POINTER, _INT, ctypes.POINTER(_Config), ctypes.c_char_p, _INT)),
    "mjb_deleteBatch": (None, (_POINTER,)),
    "mjb_nstate": (_INT, (_POINTER,)),
    "mjb_state": (_POINTER, (_POINTER,)),
    "mjb_status": (_POINTER, (_POINTER,)),
    "mjb_error": (ctypes.c_char_p, (_POINTER, _INT)),
    "mjb_expand": (_POINTER, (_POINTER, ctypes.c_char_p, _INT_POINTER, _INT_POINTER)),
    "mjb_setConst": (_INT, (_POINTER, _POINTER, _INT)),
    "mjb_getModel": (None, (_POINTER, _INT, _POINTER)),
    "mjb_apply": (_INT, (_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT)),
}
_MARKS = 0x1234567, 0x7654321
"""Numbers that stand nowhere else in an `mjData`."""

_CALLED = ("mj_step", "mj_forward", "mj_resetData", "mj_rnePostConstraint")


@functools.cache
def _library() -> Any:
    mujoco = import_mujoco()
    folder = Path(mujoco.__file__).parent
    library = ctypes.CDLL(str(next(path for path in folder.iterdir() if path.name.startswith("libmujoco."))))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def function_addresses() -> tuple[int, ...]:
    """Return the addresses of `mj_step`, `mj_forward`, `mj_resetData` and `mj_rnePostConstraint`."""
    return tuple(ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0 for name in _CALLED)


class Field(NamedTuple):
    """Place of a field in an `mjData` or `mjModel`.

    Attributes:
        name: Name of the field.
        word: Index of the 64-bit word that holds the address of the array, or the number itself.
        shape: Shape of the array; `None` for a number.
        dtype: Dtype of an element.
    """

    name: str
    word: int
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]


def find_fields(model: Any, names: set[str], *, of_model: bool) -> tuple[Field, ...]:
    """Find the fields of these names that have a fixed size; other names are left out.

    The address that the Python binding gives is searched for in the struct, and the place checked in a second one.

    Args:
        model: An `mujoco.MjModel`.
        names: Names of fields; others are ignored.
        of_model: True to look in the model instead of its data.
    """
    mujoco = import_mujoco()
    field_names = (names & mujoco.batch.MODEL_FIELDS) if of_model else names & mujoco.batch.DATA_FIELDS
    pair = (model, copy.copy(model)) if of_model else (mujoco.MjData(model), mujoco.MjData(model))
    return tuple(field for name in sorted(field_names) if (field := _find_field(pair, name)) is not None)


def _find_field(pair: tuple[Any, Any], name: str) -> Field | None:
    values = [getattr(source, name, None) for source in pair]
    if name == "time":
        pair[0].time = pair[1].time = 123456.789  # a number that stands nowhere else
        patterns = [np.float64(123456.789).view(np.int64)] * 2
        word = _find_word(pair, [int(value) for value in patterns])
        return Field(name, word, None, np.dtype(np.float64))
    if not all(isinstance(value, np.ndarray) for value in values):
        return None
    first: NDArray[Any] = values[0]  # type: ignore[assignment]  # checked above
    word = _find_word(pair, [value.ctypes.data for value in values]) if first.size else 0  # type: ignore[union-attr]
    dtype = np.dtype(np.uint8) if first.dtype == np.bool_ else first.dtype
    return Field(name, word, first.shape, dtype)


def _find_word(pair: tuple[Any, Any], values: list[int]) -> int:
    for first in range(0, _SEARCHED_WORDS, _CHUNK_WORDS):
        matches = np.ones(_CHUNK_WORDS, np.bool_)
        for struct, value in zip(pair, values, strict=True):
            address = struct._address + 8 * first  # noqa: SLF001  # MuJoCo's own
            matches &= np.ctypeslib.as_array((ctypes.c_int64 * _CHUNK_WORDS).from_address(address)) == value
        if matches.any():
            return first + int(np.argmax(matches))
    raise KernelError("a field of MuJoCo's structs was not found: use a MuJoCo release that envfleet was tested with")


@functools.cache
def warnings_word() -> int:
    """Return the word of an `mjData` where the four warnings of a diverging simulation begin, one word each."""
    mujoco = import_mujoco()
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    pair = mujoco.MjData(model), mujoco.MjData(model)
    for data in pair:
        warning = data.warning[int(mujoco.mjtWarning.mjWARN_BADQPOS)]
        warning.lastinfo, warning.number = _MARKS
    return _find_word(pair, [_MARKS[1] << 32 | _MARKS[0]] * 2)


class Simulations:
    """N simulations of one model, on MuJoCo's thread pool.

    Args:
        model: An `mujoco.MjModel`; copied.
        num_sims: Number of simulations.
        num_threads: Number of threads, including the caller's.

    Attributes:
        state: State of each simulation (`mjSTATE_INTEGRATION`, warm start included), in MuJoCo's memory, `(num_sims,
            num_numbers)`.

    Raises:
        KernelError: MuJoCo cannot batch this model.
    """

    def __init__(self, model: Any, num_sims: int, num_threads: int) -> None:
        self._library, self._model, self._num_sims = _library(), model, num_sims
        self._batch = 0
        message = ctypes.create_string_buffer(1000)
        config = ctypes.byref(_Config(num_threads, 0))
        address = model._address  # noqa: SLF001  # MuJoCo's own
        self._batch = self._library.mjb_makeBatch(address, num_sims, config, message, len(message))
        if not self._batch:
            raise KernelError(f"MuJoCo cannot batch this model: {message.value.decode()}")
        num_numbers = self._library.mjb_nstate(self._batch)
        self.state = self._view(self._library.mjb_state(self._batch), (num_sims, num_numbers), np.float64)

    @staticmethod
    def _view(address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        size_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * size_bytes).from_address(address), dtype).reshape(shape)

    def expand(self, fields: Mapping[str, NDArray[Any]]) -> None:
        """Give every simulation its own values of fields of the model, and update what MuJoCo derives from them.

        Args:
            fields: Arrays `(num_sims, …)` by name.

        Raises:
            InvalidArgument: The field does not exist, or an array has another shape.
        """
        for name, values in fields.items():
            size, item_bytes = ctypes.c_int(), ctypes.c_int()
            present: Any = getattr(self._model, name, None)
            address = 0
            if isinstance(present, np.ndarray):
                address = self._library.mjb_expand(self._batch, name.encode(), size, item_bytes)
            if not address:
                raise InvalidArgument(
                    f"model_fields has {name!r}, which is not a field of MuJoCo's model that may differ between "
                    "simulations: pass names such as 'body_mass', see mujoco.batch.MODEL_FIELDS"
                )
            shape = (self._num_sims, *present.shape)
            if np.shape(values) != shape:
                raise InvalidArgument(
                    f"model_fields[{name!r}] has shape {np.shape(values)}, expected {shape}: pass one array for each "
                    "sub-environment"
                )
            self._view(address, shape, present.dtype)[...] = values
        if fields and self._library.mjb_setConst(self._batch, 0, 0):
            self._raise_failed()

    def apply(self, function: int, argument: int, rows: NDArray[np.int32] | None = None) -> bool:
        """Call a C function `(model, data, index, argument)` on some simulations, or on all, and save their states.

        Args:
            function: Address of the function.
            argument: Handed to the function.
            rows: Indices of the simulations; all by default.

        Returns:
            Whether MuJoCo raised no error.
        """
        ids, count = (0, 0) if rows is None else (rows.ctypes.data, len(rows))
        failed: int = self._library.mjb_apply(self._batch, ids, count, function, argument, 1)
        return failed == 0

    def errors(self) -> dict[int, str]:
        """Return the messages of simulations that failed in the last call, by index."""
        status = self._view(self._library.mjb_status(self._batch), (self._num_sims,), np.int32)
        rows = np.flatnonzero(status).tolist()
        return {row: self._library.mjb_error(self._batch, row).decode() for row in rows}

    def _raise_failed(self) -> None:
        row, message = next(iter(self.errors().items()))
        raise InvalidArgument(f"MuJoCo refuses the model of sub-environment {row}: {message}")

    def model_of(self, row: int) -> Any:
        """Return a copy of the model of one simulation."""
        model = copy.copy(self._model)
        self.read_model(row, model)
        return model

    def read_model(self, row: int, model: Any) -> None:
        """Write the model of one simulation into a copy of another one."""
        self._library.mjb_getModel(self._batch, row, model._address)  # noqa: SLF001  # MuJoCo's own

    def close(self) -> None:
        """Free the simulations."""
        batch, self._batch = self._batch, 0
        if batch:
            self.state = self.state.copy()
            self._library.mjb_deleteBatch(batch)

    def __del__(self) -> None:
        self.close()
