"""The bytes between a fleet and a worker process."""

from __future__ import annotations

import contextlib
import pickle
import struct
from typing import Any

import cloudpickle

from envfleet.core.failures import make_failure
from envfleet.core.messages import Reply, Request, Verb
from envfleet.errors import InvalidArgument

HEADER = struct.Struct("<BBHIQ")
"""Request: verb, generation, unused, payload bytes, sequence number."""

RECORD = struct.Struct("<HHIQ")
"""Completion: worker, flags, row, sequence number."""

LENGTH = struct.Struct("<Q")
"""Length of the message that follows."""

HAS_REPLY = 1


def encode_builder(value: Any) -> bytes:
    """Pickle something that builds sub-environments.

    Raises:
        InvalidArgument: It does not pickle.
    """
    try:
        body: bytes = cloudpickle.dumps(value)
    except Exception as error:  # any type may fail in its own way
        raise InvalidArgument(
            f"what builds the sub-environments cannot be pickled, so it cannot reach worker processes: {error}; "
            'make such things within the callable, or pass backend="serial" or "thread"'
        ) from error
    return body


def encode_request(request: Request) -> bytes:
    """Header, and the pickled payload if there is one.

    Raises:
        InvalidArgument: The payload does not pickle.
    """
    verb, seq, generation, payload = request
    if payload is None:
        return HEADER.pack(verb, generation, 0, 0, seq)
    is_plain = verb is Verb.STEP and not payload.objects  # numbers, which take a third of the time without the cloud
    try:
        body: bytes = pickle.dumps(payload, protocol=5) if is_plain else cloudpickle.dumps(payload)
    except Exception as error:
        raise InvalidArgument(
            f"the arguments of {verb.name.lower()} cannot be pickled, so they cannot reach worker processes: {error}"
        ) from error
    return HEADER.pack(verb, generation, 0, len(body), seq) + body


def decode_request(header: tuple[int, ...], body: bytes) -> Request:
    """The inverse, from the unpacked header and the payload's bytes."""
    verb, generation, _, _, seq = header
    return Request(Verb(verb), seq, generation, cloudpickle.loads(body) if body else None)


def encode_reply(reply: Reply, verb: str, worker: int, first_index: int) -> bytes:
    """Pickle a reply; what does not pickle in it is replaced by a `Failure` that says so."""
    with contextlib.suppress(Exception):  # any type may fail in its own way; cloudpickle takes more of them
        return pickle.dumps(reply, protocol=5)
    try:
        body: bytes = cloudpickle.dumps(reply)
        return body
    except Exception as error:  # noqa: BLE001 - as above
        return pickle.dumps(_without_unpicklable(reply, verb, worker, first_index, error), protocol=5)


def _without_unpicklable(reply: Reply, verb: str, worker: int, first_index: int, error: Exception) -> Reply:
    kept, failures = [], list(reply.failures)
    for index, info in reply.infos:
        bad = [key for key, value in info.items() if not _pickles(value)]
        if not bad:
            kept.append((index, info))
            continue
        reason = TypeError(f"info keys {bad} cannot be pickled, so they cannot leave the worker process: drop them")
        failures.append(make_failure(reason, verb=verb, env_index=index, worker=worker))
    if not _pickles(reply.value):
        reason = TypeError(f"the result cannot be pickled, so it cannot leave the worker process: {error}")
        failures.append(make_failure(reason, verb=verb, env_index=first_index, worker=worker))
    if not failures:
        failures.append(make_failure(error, verb=verb, env_index=first_index, worker=worker))
    return Reply(infos=kept, failures=failures, restarts=reply.restarts, columns=reply.columns)


def _pickles(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - any type may fail in its own way
        return False
    return True
