"""From the command line to values."""

import pytest

from envfleet.cli.parsing import choose_names, parse_env_kwargs, split_counts
from envfleet.errors import InvalidArgument


def test_environment_arguments_are_json_where_they_read_as_such():
    written = ["n=3", "x=-0.5", "on=true", "text=a=b", "size=[1, 2]", 'quoted="3"', "nothing=null"]
    expected = {"n": 3, "x": -0.5, "on": True, "text": "a=b", "size": [1, 2], "quoted": "3", "nothing": None}
    assert parse_env_kwargs(written) == expected


@pytest.mark.parametrize("written", ["n", "=3", "a b=3"])
def test_what_is_no_assignment(written):
    with pytest.raises(InvalidArgument, match="name=value"):
        parse_env_kwargs([written])


@pytest.mark.parametrize("written", ["", ",", "-1", "1.5", "1,x"])
def test_what_is_no_count(written):
    with pytest.raises(InvalidArgument, match="--num-envs"):
        split_counts(written, "--num-envs")


def test_names():
    known = ["a", "b", "c"]
    assert choose_names("default", "--x", known, ["a"]) == ["a"]
    assert choose_names("all", "--x", known, ["a"]) == known
    assert choose_names("none", "--x", known, ["a"]) == []
    assert choose_names("c,a", "--x", known, ["a"]) == ["c", "a"]
    with pytest.raises(InvalidArgument, match="names z, expected some of a, b, c"):
        choose_names("a,z", "--x", known, ["a"])
