"""The only worker loop: take a request, let the group carry it out, complete it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envfleet.core.failures import make_failure
from envfleet.core.group import CLOSE_TIMEOUT_S, Group
from envfleet.core.messages import ALL_ROWS, Reply, Request, StepPayload, Verb
from envfleet.errors import InvalidArgument

Complete = Callable[[int, int, Reply | None], None]
"""Tells the fleet that a request (or one row of it) is done: sequence number, row or `ALL_ROWS`, and what to say."""


class Server:
    """Carries out requests on one group.

    Args:
        group: The group.
        worker: Index of the worker.
        first_index: Index in the fleet of the group's first sub-environment.
        complete: Called once per finished request, or once per row of a `STEP` that goes one by one.
    """

    def __init__(self, group: Group, worker: int, first_index: int, complete: Complete) -> None:
        self.group, self._worker, self._first_index, self._complete = group, worker, first_index, complete

    def handle(self, request: Request) -> bool:
        """Carry out one request; returns whether the loop should go on."""
        verb, seq, generation, payload = request
        if verb is Verb.STEP and payload is None:
            self._complete(seq, ALL_ROWS, self._step_all(generation))
        elif verb is Verb.STEP:
            self._step(seq, generation, payload)
        else:
            self._complete(seq, ALL_ROWS, self._guard(verb, lambda: self._dispatch(verb, generation, payload)))
        return verb is not Verb.CLOSE

    def step_here(self, generation: int) -> Reply | None:
        """Step every sub-environment once, for a caller in the group's own thread.

        Raises:
            InvalidArgument: The group refused the actions before it stepped anything.
        """
        try:
            return self.group.step(generation, None, [])
        except InvalidArgument:
            raise
        except BaseException as error:  # noqa: BLE001 - see `_describe`
            return self._describe(Verb.STEP, error)

    def _step_all(self, generation: int) -> Reply | None:
        try:
            return self.group.step(generation, None, [])
        except BaseException as error:  # noqa: BLE001 - see `_describe`
            return self._describe(Verb.STEP, error)

    def _step(self, seq: int, generation: int, payload: StepPayload) -> None:
        rows, objects = payload.rows, payload.objects
        if not payload.one_by_one:
            self._complete(seq, ALL_ROWS, self._guard(Verb.STEP, lambda: self.group.step(generation, rows, objects)))
            return
        for k, row in enumerate(range(self.group.num_envs) if rows is None else rows):
            reply = self._guard(Verb.STEP, lambda: self.group.step(generation, (row,), [[leaf[k]] for leaf in objects]))  # noqa: B023
            self._complete(seq, row, reply)

    def _dispatch(self, verb: Verb, generation: int, payload: Any) -> Reply | None:
        group = self.group
        if verb is Verb.RESET:
            return group.reset(generation, payload)
        if verb is Verb.CALL:
            return group.call(*payload)
        if verb is Verb.SET_ATTR:
            return group.set_attr(*payload)
        if verb is Verb.GET_STATE:
            return group.get_state(generation, payload)
        if verb is Verb.SET_STATE:
            return group.set_state(generation, payload)
        return Reply(failures=group.close(CLOSE_TIMEOUT_S if payload is None else payload))

    def _guard(self, verb: Verb, action: Callable[[], Reply | None]) -> Reply | None:
        """Answer in any case: an error of the group itself must not leave the fleet waiting."""
        try:
            return action()
        except BaseException as error:  # noqa: BLE001 - see `_describe`
            return self._describe(verb, error)

    def _describe(self, verb: Verb, error: BaseException) -> Reply:
        """Report an error of the group itself: whatever it is, the fleet must hear of it."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        failure = make_failure(error, verb=verb.name.lower(), env_index=self._first_index, worker=self._worker)
        return Reply(failures=[failure])


def serve(server: Server, receive: Callable[[], Request | None]) -> None:
    """Handle requests until one says to close or `receive` returns `None` because the fleet is gone."""
    request = receive()
    while request is not None and server.handle(request):
        request = receive()
