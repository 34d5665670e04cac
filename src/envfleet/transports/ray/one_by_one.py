"""Steps whose rows complete one by one, by actor calls: all rows of a call arrive together.

So the worker steps them at once, with one reply, and the owner gives each row its share of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from envfleet.core.messages import ALL_ROWS, Completion, Reply, Request, StepPayload


def at_once(request: Request) -> Request:
    """The request, with one completion for all its rows."""
    payload = request.payload
    if isinstance(payload, StepPayload) and payload.one_by_one:
        return request._replace(payload=payload._replace(one_by_one=False))
    return request


def completions(request: Request, worker: int, first_index: int, row: int, reply: Reply | None) -> Iterator[Completion]:
    """What a worker completed, in the form that was asked for.

    Args:
        request: What was asked.
        worker: Of whom.
        first_index: Index in the fleet of its first sub-environment.
        row: What it completed, or `ALL_ROWS`.
        reply: What it had to say.
    """
    payload = request.payload
    if row != ALL_ROWS or not isinstance(payload, StepPayload) or not payload.one_by_one or not payload.rows:
        yield Completion(worker, request.seq, row, reply)
        return
    shares = [None] * len(payload.rows) if reply is None else divide(reply, [first_index + k for k in payload.rows])
    for one, share in zip(payload.rows, shares, strict=True):
        yield Completion(worker, request.seq, one, share)


def divide(reply: Reply, indices: list[int]) -> list[Reply | None]:
    """Divide what a worker says of a step between the sub-environments it stepped; `None` for those it says nothing of.

    What belongs to none of them goes to the first.
    """
    shares = {index: Reply() for index in indices}
    first = shares[indices[0]]
    first.columns = reply.columns
    for index, info in reply.infos:
        shares.get(index, first).infos.append((index, info))
    for failure in reply.failures:
        shares.get(failure.env_index, first).failures.append(failure)
    for failure in reply.restarts:
        shares.get(failure.env_index, first).restarts.append(failure)
    for index, values in reply.objects.items():
        shares.get(index, first).objects[index] = values
    for index, values in reply.final_objects.items():
        shares.get(index, first).final_objects[index] = values
    nothing = Reply()
    return [None if share == nothing else share for share in shares.values()]
