"""A native thread that runs compiled functions and never needs the interpreter.

A Python thread must hold the interpreter before and after each call, and the thread that gave it up sleeps meanwhile,
about 0.2 ms for one update of an agent.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from envfleet.native import numba_private
from envfleet.native.numba_cpu import array_at, call_at
from envfleet.native.numba_private import cpu_target
from envfleet.native.products import help_until

_system = ctypes.CDLL(None)

# Words that a thread and its owner share: how many sets of calls were started and made, and for each of the last two
# sets the number of calls, the address of their table, and whether one failed.
_STARTED, _MADE, _ADDRESS, _COUNTS, _TABLES, _FAILURES, _NUM_WORDS = 0, 1, 2, 4, 6, 8, 64
_MUTEX, _CONDITION = 128, 256  # where these begin, in bytes
_MOST_SETS = 2
_turn = threading.Lock()  # to use the thread of the process

Call = tuple[Any, tuple[Any, ...]]
"""A function that numba has compiled without the GIL, and its arguments."""


class NativeThread:
    """A thread that makes calls one after another, and sleeps while there are none.

    Raises:
        OSError: The system starts no more threads.
    """

    def __init__(self) -> None:
        self._control = np.zeros(_NUM_WORDS, np.int64)
        self._under_way = deque[tuple[list[tuple[_Form, NDArray[np.int64]]], NDArray[np.int64]]]()
        self._control[_ADDRESS] = self._control.ctypes.data
        _prepare(self._control)
        thread = ctypes.c_ulong()
        entry, control = (ctypes.c_void_p(address) for address in (_serve.address, self._control.ctypes.data))
        if _system.pthread_create(ctypes.byref(thread), None, entry, control):
            raise OSError("the system starts no more threads: end some, or raise the limit (ulimit -u)")
        self._end = weakref.finalize(self, _end, self._control, thread, os.getpid())
        self._end.atexit = False

    def start(self, calls: Sequence[Call]) -> None:
        """Make a set of calls once those before it are made; nobody else may use what they change until `results`.

        Raises:
            RuntimeError: Two sets are under way already.
        """
        if len(self._under_way) == _MOST_SETS:
            raise RuntimeError(f"{_MOST_SETS} sets of calls are under way: take the results of the first")
        filled = [_fill(function, arguments) for function, arguments in calls]
        places = [word for form, frame in filled for word in (form.entry, frame.ctypes.data)]
        table = np.array(places, np.int64)
        self._under_way.append((filled, table))
        _start(self._control, len(calls), table.ctypes.data)

    def results(self, *, helps: bool = False) -> list[Any]:
        """Wait for the oldest set of calls, and return what they returned.

        Args:
            helps: Whether to help with its products of matrices meanwhile, rather than sleep.

        Raises:
            MemoryError: A call ran out of memory.
        """
        number = self._control[_STARTED] - len(self._under_way)
        if helps:
            help_until(self._control.ctypes.data + 8 * _MADE, number + 1)
        _await_made(self._control, number + 1)
        filled, _ = self._under_way.popleft()
        for form, frame in filled:
            form.release(frame.ctypes.data)
        if self._control[_FAILURES + number % 2]:
            raise MemoryError("a compiled call ran out of memory")
        return [form.read(frame.ctypes.data) for form, frame in filled]

    @property
    def is_busy(self) -> bool:
        """Return whether there are results to take."""
        return bool(self._under_way)

    def close(self) -> None:
        """Wait for the calls, and end the thread."""
        self._end()


@functools.cache
def _thread_of(pid: int) -> NativeThread:  # a fork leaves threads behind
    return NativeThread()


def call_helped(function: Any, *arguments: Any) -> Any:
    """Make a call in a thread of the process, while this one helps with its products of matrices.

    Args:
        function: As of a `Call`; it should take longer than 0.1 ms, which is what it costs to wake a thread.
        *arguments: Likewise.
    """
    with _turn:
        thread = _thread_of(os.getpid())
        thread.start([(function, arguments)])
        while True:
            [result] = thread.results(helps=True)
            if not thread.is_busy:  # an interrupt may have come before the results of an earlier call
                return result


def _end(control: NDArray[np.int64], thread: ctypes.c_ulong, pid: int) -> None:
    if pid == os.getpid():  # a fork leaves threads behind
        _await_made(control, control[_STARTED])
        _start(control, -1, 0)
        _system.pthread_join(thread, None)


# ---------------------------------------------------------------------- how a function is called


class _Form(NamedTuple):
    """How to call a function with arguments of given types, which lie in memory with the result behind them.

    Attributes:
        kept: Holds the machine code.
        entry: Address of the code that makes the call; it takes the address of the arguments.
        write: Write the arguments.
        release: Release the arrays among them.
        read: Return the result; may be called once.
        num_words: Size of the memory.
    """

    kept: Any
    entry: int
    write: Callable[[int, tuple[Any, ...]], None]
    release: Callable[[int], None]
    read: Callable[[int], Any]
    num_words: int


_forms: dict[Any, list[_Form]] = {}  # by function


def _fill(function: Any, arguments: tuple[Any, ...]) -> tuple[_Form, NDArray[np.int64]]:
    """Return how to call a function with arguments of these types, and memory that holds the arguments."""
    forms = _forms.setdefault(function, [])
    for form in forms:
        frame = np.zeros(form.num_words, np.int64)
        try:
            form.write(frame.ctypes.data, arguments)
        except TypeError:  # made for other types
            continue
        return form, frame
    forms.append(_make_form(function, numba.typeof(arguments)))
    return _fill(function, arguments)


def _make_form(function: Any, kinds: Any) -> _Form:
    function.compile(tuple(kinds))
    context, (address, result) = cpu_target.target_context, numba_private.find_code(function, tuple(kinds))
    sizes = [-(-context.get_abi_sizeof(context.get_value_type(kind)) // 8) for kind in (kinds, result)]

    def at(builder: Any, kind: Any, place: Any) -> Any:
        return builder.inttoptr(place, context.get_value_type(kind).as_pointer())

    @intrinsic
    def put(_context: Any, place: Any, values: Any) -> Any:
        def generate(target: Any, builder: Any, _signature: Any, args: Any) -> Any:
            # numba releases its view of an array when `write` returns
            numba_private.keep(target, builder, kinds, args[1])
            builder.store(args[1], at(builder, kinds, args[0]))
            return target.get_dummy_value()

        return types.void(place, values), generate

    @intrinsic
    def drop(_context: Any, place: Any) -> Any:
        def generate(target: Any, builder: Any, _signature: Any, args: Any) -> Any:
            numba_private.release(target, builder, kinds, builder.load(at(builder, kinds, args[0])))
            return target.get_dummy_value()

        return types.void(place), generate

    @intrinsic
    def get(_context: Any, place: Any) -> Any:
        def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.load(at(builder, result, args[0]))

        return result(place), generate

    @intrinsic
    def call(_context: Any, place: Any, behind: Any) -> Any:
        def generate(target: Any, builder: Any, _signature: Any, args: Any) -> Any:
            values, pointer = builder.load(at(builder, kinds, args[0])), target.get_constant(types.intp, address)
            each = [builder.extract_value(values, number) for number in range(len(kinds))]
            has_failed, returned = numba_private.call(target, builder, pointer, tuple(kinds), each, result)
            builder.store(returned, at(builder, result, args[1]))
            return builder.zext(has_failed, target.get_value_type(types.intp))

        return types.intp(place, behind), generate

    first = 8 * sizes[0]
    entry = numba.njit(types.intp(types.intp))(lambda place: call(place, place + first))
    return _Form(
        entry,
        numba_private.find_code(entry, (types.intp,))[0],
        numba.njit(types.void(types.intp, kinds))(lambda place, arguments: put(place, arguments)),
        numba.njit(types.void(types.intp))(lambda place: drop(place)),
        numba.njit(result(types.intp))(lambda place: get(place + first)),
        sum(sizes),
    )


# ---------------------------------------------------------------------- what the thread does


def _of_system(name: str, num_arguments: int) -> Any:
    return types.ExternalFunction(name, types.int32(*[types.intp] * num_arguments))


_init_mutex, _init_condition = _of_system("pthread_mutex_init", 2), _of_system("pthread_cond_init", 2)
_lock, _unlock = _of_system("pthread_mutex_lock", 1), _of_system("pthread_mutex_unlock", 1)
_sleep, _wake = _of_system("pthread_cond_wait", 2), _of_system("pthread_cond_broadcast", 1)
_words_at = array_at(np.dtype(np.int64))


@numba.njit(cache=True)
def _prepare(control: Any) -> None:
    _init_mutex(control[_ADDRESS] + _MUTEX, 0)
    _init_condition(control[_ADDRESS] + _CONDITION, 0)


@numba.njit(cache=True)
def _count(control: Any, what: int) -> None:
    _lock(control[_ADDRESS] + _MUTEX)
    control[what] += 1
    _wake(control[_ADDRESS] + _CONDITION)
    _unlock(control[_ADDRESS] + _MUTEX)


@numba.njit(cache=True)
def _await(control: Any, what: int, count: int) -> None:
    _lock(control[_ADDRESS] + _MUTEX)
    while control[what] < count:
        _sleep(control[_ADDRESS] + _CONDITION, control[_ADDRESS] + _MUTEX)
    _unlock(control[_ADDRESS] + _MUTEX)


@numba.njit(cache=True)
def _start(control: Any, count: int, table: int) -> None:
    turn = control[_STARTED] % 2
    control[_COUNTS + turn], control[_TABLES + turn] = count, table
    _count(control, _STARTED)


@numba.njit(cache=True, nogil=True)
def _await_made(control: Any, count: int) -> None:
    _await(control, _MADE, count)


@numba.cfunc(types.intp(types.CPointer(types.intp)))  # not cached, as it holds code of another file
def _serve(control: Any) -> int:
    """Be the thread: wait for a table of entries and memory, make the calls, and count the set as made."""
    while True:
        _await(control, _STARTED, control[_MADE] + 1)
        turn = control[_MADE] % 2
        if control[_COUNTS + turn] < 0:
            return 0
        control[_FAILURES + turn] = 0
        table = _words_at(control[_TABLES + turn], 2 * control[_COUNTS + turn])
        for place in range(0, table.size, 2):
            control[_FAILURES + turn] |= call_at(table[place], (table[place + 1],))
        _count(control, _MADE)
