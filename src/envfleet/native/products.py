"""Products of float32 matrices, as explicit vector code for the processor at hand; a thread that waits can help.

A tile of the result stays in registers while the loop runs over what is summed; the right matrix lies in panels of two
vectors, one after another (Goto and van de Geijn 2008, doi:10.1145/1356052.1356053). A panel gives the same bits
whichever thread multiplies by it.
"""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from envfleet.native.compiling import compile_function, compile_part
from envfleet.native.numba_cpu import array_at
from envfleet.native.numba_private import cgutils
from envfleet.native.vectors import LANES, VECTOR, fused, spread, word

F32 = NDArray[np.float32]

TILE_ROWS = 8 if LANES == 16 else 6  # two vectors of sums for each leave registers for the factors
TILE_COLUMNS = 2 * LANES
_FEW_ROWS = 4 * TILE_ROWS  # below this, to multiply is faster than to copy a panel
_FEW_COLUMNS = 4  # likewise
_MOST_SUMMED = 512  # a higher panel does not stay in the cache from one tile to the next
_MEMORY = (_MOST_SUMMED + TILE_ROWS) * TILE_COLUMNS  # for a panel and a tile

# Words that threads share, each on a cache line of its own: how many threads help, panels of a product that
# nobody has begun, panels that are not done, whether a product is shared now, and from `_TASK` on what it is.
_HELPERS, _LEFT, _UNDONE, _IS_SHARED, _TASK, _NUM_WORDS = 0, 8, 16, 24, 32, 48
_TASK_SIZE = 11
_LEAST_SHARED = 8_000_000  # products and sums; fewer are done before another core sees them
_board = np.zeros(_NUM_WORDS, np.int64)
llvm.add_symbol("envfleet_board", _board.ctypes.data)  # machine code on the disk finds it by its name

_words_at, _floats_at = array_at(np.dtype(np.int64)), array_at(np.dtype(np.float32))
_yield_core = types.ExternalFunction("sched_yield", types.int32())


def _in_board(builder: Any, place: Any) -> Any:
    found = builder.module.globals.get("envfleet_board")
    return builder.gep(found or cgutils.add_global_variable(builder.module, word(0).type, "envfleet_board"), [place])


def _change(kind: str) -> Any:
    """Make a function that changes a word of the board atomically, and returns what it was: `"add"` or `"xchg"`."""

    @intrinsic
    def change(context, place, value):  # type: ignore[no-untyped-def]  # numba reads the signature
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.atomic_rmw(kind, _in_board(builder, arguments[0]), arguments[1], "seq_cst")

        return types.intp(types.intp, types.intp), generate

    return change


_add, _put = _change("add"), _change("xchg")


@intrinsic
def _task(context):  # type: ignore[no-untyped-def]
    """Return where the words of the product that is shared lie."""

    def generate(_context: Any, builder: Any, signature: Any, _arguments: Any) -> Any:
        return builder.ptrtoint(_in_board(builder, word(_TASK)), cgutils.intp_t)

    return types.intp(), generate


def _make_tile(num_vectors: int) -> Any:
    """Make a function that multiplies `TILE_ROWS` rows by a panel that is so many vectors wide, and `inner` rows high.

    Each of the three is where it begins and how far its rows lie apart, the result's in bytes; the third number of
    `left` is how far its columns do.
    """
    lanes = [LANES * number for number in range(num_vectors)]

    @intrinsic
    def write(context, left, panel, result, inner):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            (left, apart, along), (panel, step), (result, beside) = (
                cgutils.unpack_tuple(builder, one) for one in arguments[:3]
            )
            left, panel, result = (builder.inttoptr(one, ir.FloatType().as_pointer()) for one in (left, panel, result))

            def vector_at(data: Any, place: Any, lane: int) -> Any:
                return cgutils.pointer_add(builder, data, builder.add(place, word(4 * lane)), VECTOR.as_pointer())

            places = [(row, lane) for row in range(TILE_ROWS) for lane in lanes]
            sums = {place: cgutils.alloca_once(builder, VECTOR) for place in places}
            for one in sums.values():
                builder.store(ir.Constant(VECTOR, [0.0] * LANES), one)
            with cgutils.for_range(builder, arguments[3]) as loop:
                row_start = builder.mul(builder.mul(loop.index, step), word(4))
                given = {lane: builder.load(vector_at(panel, row_start, lane), align=4) for lane in lanes}
                start = builder.mul(loop.index, along)
                factors = [
                    spread(builder, left, builder.add(builder.mul(word(row), apart), start)) for row in range(TILE_ROWS)
                ]
                for (row, lane), one in sums.items():
                    builder.store(fused(builder, factors[row], given[lane], builder.load(one)), one)
            for (row, lane), one in sums.items():
                builder.store(builder.load(one), vector_at(result, builder.mul(word(row), beside), lane), align=4)
            return context.get_dummy_value()

        pair = types.UniTuple(types.intp, 2)
        return types.void(types.UniTuple(types.intp, 3), pair, pair, types.intp), generate

    return write


_write_tile, _write_narrow_tile = _make_tile(2), _make_tile(1)


@compile_part
def _copy_panel(right: int, down: int, across: int, panel: F32, count: int) -> None:
    """Copy so many columns of the right matrix from where it begins, and fill the panel up with zeros."""
    panel[:, count:] = 0
    for k in range(panel.shape[0] if across == 1 else 0):
        row = _floats_at(right + 4 * k * down, count)
        if count == TILE_COLUMNS:
            for column in range(TILE_COLUMNS):  # of a fixed length, which is two vectors
                panel[k, column] = row[column]
        else:
            for column in range(count):
                panel[k, column] = row[column]
    for column in range(count if across > 1 else 0):
        given = _floats_at(right + 4 * column * across, panel.shape[0])
        for k in range(panel.shape[0]):
            panel[k, column] = given[k]


@compile_part
def _write_panel(product: NDArray[np.int64], number: int, memory: F32) -> None:
    """Write some columns of a product."""
    left, apart, along, right, down, across, result, beside, rows, columns, inner = product
    first = number * TILE_COLUMNS
    count = min(TILE_COLUMNS, columns - first)
    tile = memory[-TILE_ROWS * TILE_COLUMNS :]
    made = np.int64(tile.ctypes.data)
    for begin in range(0, inner, _MOST_SUMMED):
        height, corner = min(_MOST_SUMMED, inner - begin), right + 4 * (begin * down + first * across)
        source = corner, down
        if across > 1 or count < TILE_COLUMNS or rows >= _FEW_ROWS:
            panel = memory[: height * TILE_COLUMNS].reshape(height, TILE_COLUMNS)
            _copy_panel(corner, down, across, panel, count)
            source = (np.int64(panel.ctypes.data), TILE_COLUMNS)
        for start in range(0, rows, TILE_ROWS):
            row = min(start, rows - TILE_ROWS)
            given, place = (left + 4 * (row * apart + begin * along), apart, along), result + row * beside + 4 * first
            if begin == 0 and count == TILE_COLUMNS:
                _write_tile(given, source, (place, beside), height)
                continue
            if count > LANES:
                _write_tile(given, source, (made, 4 * TILE_COLUMNS), height)
            else:
                _write_narrow_tile(given, source, (made, 4 * TILE_COLUMNS), height)
            for k in range(start - row, TILE_ROWS):
                written = _floats_at(place + k * beside, count)
                for column in range(count):
                    sum_before = written[column] if begin else np.float32(0)
                    written[column] = sum_before + tile[k * TILE_COLUMNS + column]


@compile_part
def _write_next(product: NDArray[np.int64], memory: F32) -> bool:
    """Write a panel of the product that is shared, if one is left that nobody has begun; return whether one was."""
    if _add(_LEFT, 0) <= 0:
        return False
    left = _add(_LEFT, -1)  # only now does the product stay what it is, until this panel is done
    if left <= 0:
        return False
    _write_panel(product, left - 1, memory)
    _add(_UNDONE, -1)
    return True


@compile_part
def _multiply_few(left: F32, right: F32, result: F32, is_left_turned: bool, is_right_turned: bool) -> None:
    """Do what `multiply` does, without a copy."""
    rows, columns = result.shape
    for row in range(rows):
        if is_right_turned:
            for column in range(columns):
                total = np.float32(0)
                for k in range(right.shape[1]):
                    total += left[row, k] * right[column, k]
                result[row, column] = total
            continue
        result[row] = 0
        for k in range(right.shape[0]):
            factor = left[k, row] if is_left_turned else left[row, k]
            for column in range(columns):
                result[row, column] += factor * right[k, column]


@compile_part
def multiply(left: F32, right: F32, result: F32, is_left_turned: bool, is_right_turned: bool) -> None:
    """Multiply two matrices; rows may lie apart. A row has the same bits wherever it stands among many.

    Args:
        left: `(N, K)`, or `(K, N)`.
        right: `(K, M)`, or `(M, K)`.
        result: Gets the product, `(N, M)`.
        is_left_turned: Whether `left` is the second.
        is_right_turned: Likewise of `right`; not both.
    """
    rows, columns = result.shape
    is_small = rows < 2 * TILE_ROWS or columns <= _FEW_COLUMNS
    if rows < TILE_ROWS or (is_right_turned and is_small):  # what it saves is the panel
        _multiply_few(left, right, result, is_left_turned, is_right_turned)
        return
    inner = right.shape[1] if is_right_turned else right.shape[0]
    apart, along = (1, left.strides[0] // 4) if is_left_turned else (left.strides[0] // 4, 1)
    down, across = (1, right.strides[0] // 4) if is_right_turned else (right.strides[0] // 4, 1)
    product = np.array(
        (np.int64(left.ctypes.data), apart, along, np.int64(right.ctypes.data), down, across,
         np.int64(result.ctypes.data), result.strides[0], rows, columns, inner)
    )  # fmt: skip
    memory = np.empty(_MEMORY, np.float32)
    count = -(-columns // TILE_COLUMNS)
    if count > 1 and rows * columns * inner >= _LEAST_SHARED and _add(_HELPERS, 0):
        if _add(_IS_SHARED, 1) == 0:
            task = _words_at(_task(), product.size)
            for place in range(product.size):
                task[place] = product[place]
            _put(_UNDONE, count)
            _put(_LEFT, count)
            while _write_next(product, memory):
                pass
            while _add(_UNDONE, 0):
                pass
            _add(_IS_SHARED, -1)
            return
        _add(_IS_SHARED, -1)  # with another thread's product
    for number in range(count):
        _write_panel(product, number, memory)


@functools.partial(compile_function, releases_gil=True)
def help_until(address: int, least: int) -> None:
    """Help with other threads' products until the word at an address is `least` or more."""
    product, memory = _words_at(_task(), _TASK_SIZE), np.empty(_MEMORY, np.float32)
    _add(_HELPERS, 1)
    while _words_at(address, 1)[0] < least:
        if not _write_next(product, memory):
            _yield_core()
    _add(_HELPERS, -1)
