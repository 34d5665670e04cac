"""Rows that were stepped at once complete one by one, each with its share of what the worker said."""

from __future__ import annotations

from envfleet.core.info_columns import ColumnSpec
from envfleet.core.messages import ALL_ROWS, Completion, Reply, Request, StepPayload, Verb
from envfleet.failure import Failure
from envfleet.transports.ray.one_by_one import at_once, completions

REQUEST = Request(Verb.STEP, 7, 1, StepPayload((2, 0, 1), [["a", "b", "c"]], one_by_one=True))
FIRST = 10


def failure(index: int) -> Failure:
    return Failure(index, 3, "step", "builtins.ValueError", "no", "", 1)


def test_worker_is_asked_for_all_at_once() -> None:
    asked = at_once(REQUEST)
    assert asked == REQUEST._replace(payload=REQUEST.payload._replace(one_by_one=False))
    for other in (Request(Verb.STEP, 7), asked, Request(Verb.CALL, 7, 0, None)):
        assert at_once(other) is other


def test_nothing_to_say() -> None:
    found = list(completions(REQUEST, 3, FIRST, ALL_ROWS, None))
    assert found == [Completion(3, 7, row) for row in (2, 0, 1)]


def test_everybody_gets_a_share() -> None:
    """And what belongs to nobody asked goes to the first, so that it is not lost."""
    columns = [ColumnSpec(0, "count", int)]
    said = Reply(
        infos=[(12, {"a": 1}), (10, {"b": 2}), (10, {"c": 3})],
        failures=[failure(10), failure(99)],
        restarts=[failure(12)],
        objects={12: ["x"]},
        final_objects={10: ["y"]},
        columns=columns,
    )
    found = {one.row: one.reply for one in completions(REQUEST, 3, FIRST, ALL_ROWS, said)}
    assert found[1] is None
    assert found[2] == Reply(
        infos=[(12, {"a": 1})], failures=[failure(99)], restarts=[failure(12)], objects={12: ["x"]}, columns=columns
    )
    assert found[0] == Reply(infos=[(10, {"b": 2}), (10, {"c": 3})], failures=[failure(10)], final_objects={10: ["y"]})


def test_what_was_not_asked_one_by_one_stays_whole() -> None:
    said = Reply(infos=[(10, {"a": 1})])
    whole = Request(Verb.STEP, 7, 0, None)
    assert list(completions(whole, 3, FIRST, ALL_ROWS, said)) == [Completion(3, 7, ALL_ROWS, said)]
