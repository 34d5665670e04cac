"""Plots are written in the form that the file's name says."""

import dataclasses
import re

import pytest
from tests.unit.bench.samples import entry, report, run

from envfleet.bench.plot import plot_report
from envfleet.errors import InvalidArgument

ONE = run(entry("loop", 1_000, 1_100), entry("envfleet-process", 2_000), entry("another-library", 10))
MANY = [run(entry("loop", 1_000), entry("envpool", 90_000 * size), num_envs=size) for size in (1, 8)]
OTHER = run(entry("loop", 5), entry("envfleet-serial", 4), workload="image")


@pytest.mark.parametrize(
    ("name", "head"),
    [("a.png", b"\x89PNG"), ("deep/er/a.pdf", b"%PDF"), ("a.svg", b"<?xml")],
    ids=["png", "pdf", "svg"],
)
@pytest.mark.parametrize("runs", [[ONE], MANY, [*MANY, OTHER]], ids=["single", "groups", "panels"])
def test_plot(tmp_path, name, head, runs):
    plot_report(report(*runs), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(head)


def test_unknown_ending(tmp_path):
    with pytest.raises(InvalidArgument, match=r"a\.xyz"):
        plot_report(report(ONE), tmp_path / "a.xyz")


def test_long_names_are_wrapped(tmp_path):
    named = dataclasses.replace(ONE, workload="hockey", env="package/" + "-".join(["Environment"] * 7) + "-v0")
    plot_report(report(named), tmp_path / "a.svg")
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", (tmp_path / "a.svg").read_text(encoding="utf-8"))
    assert len([text for text in texts if "Environment" in text]) == 2
    assert max(map(len, texts)) <= 56


def test_nothing_to_draw(tmp_path):
    with pytest.raises(InvalidArgument, match="nothing was measured"):
        plot_report(report(run(entry("loop"))), tmp_path / "a.png")
