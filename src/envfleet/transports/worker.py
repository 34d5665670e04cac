"""What runs inside a worker process."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import cloudpickle

from envfleet.core.arrays import ArraysSpec, FleetArrays, PlaceWord
from envfleet.core.env_group import EnvGroup
from envfleet.core.failures import StepInterrupted, make_failure
from envfleet.core.layout import BlockLayout, SpaceLayout
from envfleet.core.memory import SharedBlock
from envfleet.core.messages import ALL_ROWS, Reply, Request, Verb
from envfleet.core.serve import Server, serve
from envfleet.core.shared import SharedArrays
from envfleet.core.transport import GroupPlan
from envfleet.errors import SubEnvError
from envfleet.transports.patience import Patience
from envfleet.transports.wire import HAS_REPLY, HEADER, LENGTH, RECORD, decode_request, encode_reply


class _Channel:
    """The worker's ends of its pipes."""

    def __init__(self, worker: int, request_fd: int, reply_fd: int, done_fd: int) -> None:
        self.worker, self.first_index = worker, 0
        self._verb = "make"
        self._request_fd, self._reply_fd, self._done_fd = request_fd, reply_fd, done_fd
        self._patience = Patience()
        self._patience.register(request_fd)

    def read_exactly(self, size: int) -> bytes | None:
        """Read `size` bytes, or `None` if the owner is gone."""
        data = os.read(self._request_fd, size)
        if len(data) == size:
            return data
        parts = bytearray(data)
        while len(parts) < size:
            data = os.read(self._request_fd, size - len(parts))
            if not data:
                return None
            parts += data
        return bytes(parts)

    def read_message(self) -> bytes | None:
        """Read one message with its length in front; `None` if the owner is gone."""
        head = self.read_exactly(LENGTH.size)
        return None if head is None else self.read_exactly(LENGTH.unpack(head)[0])

    def receive(self) -> Request | None:
        """Wait for the next request; `None` if the owner is gone."""
        self._patience.linger()
        data = self.read_exactly(HEADER.size)
        if data is None:
            return None
        header = HEADER.unpack(data)
        self._verb = Verb(header[0]).name.lower()
        if not header[3]:
            return Request(Verb(header[0]), header[4], header[1])
        body = self.read_exactly(header[3])
        return None if body is None else decode_request(header, body)

    def complete(self, seq: int, row: int, reply: Reply | None) -> None:
        """Write the record, and after it the message, which the owner reads once it has seen the record."""
        if reply is None:
            os.write(self._done_fd, RECORD.pack(self.worker, 0, row, seq))
            return
        body = encode_reply(reply, self._verb, self.worker, self.first_index)
        os.write(self._done_fd, RECORD.pack(self.worker, HAS_REPLY, row, seq))
        view = memoryview(LENGTH.pack(len(body)) + body)
        while view:
            view = view[os.write(self._reply_fd, view) :]


def run(args: bytes, fds: list[int]) -> None:
    """Build the group the owner sends, then serve it until told to close or the owner is gone.

    Args:
        args: Pickled index of the worker.
        fds: Request pipe, reply pipe, stack file, completion pipe, shared block, and shared data if there is any.
    """
    request_fd, reply_fd, stack_fd, done_fd, block_fd, *shared_fds = fds
    faulthandler.register(signal.SIGUSR1, file=stack_fd, all_threads=True)
    channel = _Channel(pickle.loads(args), request_fd, reply_fd, done_fd)
    # The owner may be gone at any point; then there is nobody to tell.
    with contextlib.ExitStack() as resources, contextlib.suppress(BrokenPipeError):
        server = _build(channel, block_fd, shared_fds, resources)
        if server is not None:
            serve(server, channel.receive)


def _build(channel: _Channel, block_fd: int, shared_fds: list[int], resources: contextlib.ExitStack) -> Server | None:
    boot = channel.read_message()
    if boot is None:
        return None

    def attach_shared(layout: BlockLayout | None) -> SharedArrays:
        if layout is None:
            return SharedArrays.local(None)
        shared = SharedArrays.attach(shared_fds[0], layout)
        resources.callback(shared.close)
        return shared

    group, plan, reply = build_group(boot, channel.worker, attach_shared)
    if plan is not None:
        channel.first_index = plan.options.first_index
    channel.complete(0, ALL_ROWS, reply)
    if group is None or plan is None:
        return None
    message = channel.read_message()
    if message is None:
        group.close()
        return None
    spec: ArraysSpec = cloudpickle.loads(message)
    block = resources.enter_context(SharedBlock.attach(block_fd, spec.block_layout().size_bytes))
    arrays = FleetArrays.bind(spec, block.buffer, slice(plan.rows.start, plan.rows.stop))
    group.attach(arrays, (SpaceLayout(spec.observation_space), SpaceLayout(spec.action_space)))
    allow_interrupts(arrays.progress[channel.worker])
    return Server(group, channel.worker, channel.first_index, channel.complete)


def build_group(
    boot: bytes, worker: int, attach_shared: Callable[[BlockLayout | None], SharedArrays]
) -> tuple[EnvGroup | None, GroupPlan | None, Reply]:
    """Build the group that the owner asks for.

    Args:
        boot: The pickled plan, and the layout of the shared data if there is any.
        worker: Index of the worker.
        attach_shared: Finds the shared data.

    Returns:
        The group and the plan, as far as it came to them, and what to tell the owner: what the group describes, or
        what went wrong.
    """
    plan: GroupPlan | None = None
    try:
        plan, shared_layout = cloudpickle.loads(boot)
        group = EnvGroup(plan.builders, plan.options, attach_shared(shared_layout).arrays)
        return group, plan, Reply(value=group.describe())
    except SubEnvError as error:
        return None, plan, Reply(failures=list(error.failures))
    except BaseException as error:  # noqa: BLE001 - whatever goes wrong here must reach the owner
        first_index = 0 if plan is None else plan.options.first_index
        failure = make_failure(error, verb="make", env_index=first_index, worker=worker)
        return None, plan, Reply(failures=[failure])


def allow_interrupts(progress: Any) -> None:
    """Have SIGUSR2 raise inside the sub-environment that `progress` names to be interrupted."""

    def interrupt(signum: int, frame: Any) -> None:
        place = PlaceWord.place(progress)
        if place and place == progress[PlaceWord.INTERRUPT]:
            raise StepInterrupted

    signal.signal(signal.SIGUSR2, interrupt)
