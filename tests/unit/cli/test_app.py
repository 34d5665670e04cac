"""The commands as a person types them."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import sys

import pytest
from typer.testing import CliRunner

import envfleet
from envfleet.bench import rounds
from envfleet.cli import main
from envfleet.cli.app import app
from envfleet.errors import FleetBroken
from envfleet.workers import replay as replay_module

QUICK = ["--seconds", "0.01", "--rounds", "1"]
COMMANDS = ("bench", "tune", "doctor", "envs", "replay")


def invoke(*arguments, **environment):
    """Run the command line in this process, without colours."""
    return CliRunner(env={"NO_COLOR": "1", "TERM": "dumb", **environment}).invoke(app, list(arguments))


def flat(text):
    """Take a panel's frame and line breaks away."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


def raise_from(monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(rounds, "run_contests", fail)


def test_version():
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.strip() == f"envfleet {envfleet.__version__}"


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=str)
def test_help(command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output
    if not command:
        assert all(name in result.output for name in COMMANDS)


def test_bench_prints_a_table_and_writes_files(tmp_path):
    figures, plot = tmp_path / "out" / "a.json", tmp_path / "out" / "a.png"
    peers = "loop,gymnasium-sync"
    result = invoke(
        "bench", "CartPole-v1", "-n", "1,2", "--backends", "serial", "--peers", peers, *QUICK,
        "--json", str(figures), "--plot", str(plot),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "bare Python loop" in result.output
    assert re.search(r"Gymnasium SyncVectorEnv +[\d,]+ +[\d.]+ +[\d.]+×", result.output)
    assert [run["num_envs"] for run in json.loads(figures.read_text())["runs"]] == [1, 2]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_bench_of_a_peer_that_cannot_run_it():
    result = invoke("bench", "dict", "-n", "2", "--backends", "none", "--peers", "loop,envpool", *QUICK)
    assert result.exit_code == 0
    assert "Not measured: EnvPool: envfleet-bench/Dict-v0 is not among" in flat(result.output)


def test_a_bench_that_measured_nothing_has_failed():
    result = invoke("bench", "dict", "-n", "2", "--backends", "none", "--peers", "envpool", *QUICK)
    assert result.exit_code == 1
    assert "Not measured: EnvPool" in flat(result.output)


def test_tune(tmp_path):
    figures = tmp_path / "tune.json"
    result = invoke(
        "tune", "CartPole-v1", "-n", "2", "--backends", "serial,thread", "--seconds", "1", "--json", str(figures)
    )
    assert result.exit_code == 0, result.output
    assert 'envfleet.make("CartPole-v1", num_envs=2, backend=' in flat(result.output)
    assert "envfleet/CartPole-v1 is compiled: " in flat(result.output)
    assert json.loads(figures.read_text())["kind"] == "envfleet.tune"


def test_doctor(tmp_path):
    figures = tmp_path / "doctor.json"
    arguments = ["-n", "2", "--policy-latency-ms", "1", "--seconds", "0.05", "--json", str(figures)]
    result = invoke("doctor", "infos", *arguments)
    assert result.exit_code == 0, result.output
    assert "The policy takes" in result.output
    assert json.loads(figures.read_text())["kind"] == "envfleet.doctor"


def test_envs():
    result = invoke("envs", "cartpole")
    assert result.exit_code == 0
    assert "CartPole-v1" in result.output
    assert "Pendulum" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "CartPoles-v1"], "close to it: CartPole-v1"),
        (["bench", "CartPole-v1", "-n", "eight"], "--num-envs is 'eight'"),
        (["bench", "CartPole-v1", "-w", "0"], "--workers is '0'"),
        (["bench", "CartPole-v1", "--peers", "loop,pufferlib"], "--peers names pufferlib"),
        (["bench", "CartPole-v1", "--backends", "spark"], "--backends names spark"),
        (
            ["bench", "CartPole-v1", "--backends", "none", "--peers", "none"],
            "select contenders with `--backends` or `--peers`",
        ),
        (["bench", "tests.unit.bench.fakes:broken"], "planted in the constructor"),
        (["tune", "CartPole-v1", "--backends", "ray"], "backends='ray'"),
        (["bench", "CartPole-v1", "-a", "render_mode"], "expected name=value"),
        (["envs", "no such thing"], "no registered id contains"),
        (["envs", "--import", "no_such_module"], "cannot be imported"),
        (["doctor", "tests.unit.bench.fakes:broken", "--seconds", "0.05"], "planted in the constructor"),
    ],
)
def test_mistakes_are_one_readable_panel(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in flat(result.output)
    assert "Traceback" not in result.output


def test_errors_show_a_traceback_when_asked(monkeypatch):
    raise_from(monkeypatch, FleetBroken("planted [bold]"))
    assert "Traceback" not in invoke("bench", "CartPole-v1").output
    result = invoke("bench", "CartPole-v1", ENVFLEET_DEBUG="1")
    assert result.exit_code == 2
    assert "Traceback" in result.output
    assert "planted [bold]" in result.output


def test_ctrl_c_is_answered_in_a_line(monkeypatch):
    raise_from(monkeypatch, KeyboardInterrupt())
    result = invoke("bench", "CartPole-v1")
    assert result.exit_code == 130
    assert result.output.strip() == "Interrupted."


def test_a_folder_that_cannot_be_made_is_one_readable_panel(tmp_path):
    place = tmp_path / "a file"
    place.touch()
    result = invoke("train", "quickstart", "--out", str(place), "--max-transitions", "1")
    assert result.exit_code == 2
    assert "(Not a directory): pass another folder for runs" in flat(result.output)


@pytest.mark.parametrize(
    ("command", "option"),
    [("bench", "--json"), ("bench", "--plot"), ("tune", "--json"), ("doctor", "--json"), ("evaluate", "--json"),
     ("tournament", "--json"), ("tournament", "--plot")],
)  # fmt: skip
def test_unwritable_outputs_are_refused_before_measuring(tmp_path, command, option):
    file = tmp_path / "a file"
    file.touch()
    for place, reason in ((file / "a.png", "Not a directory"), (tmp_path, "Is a directory")):
        result = invoke(command, str(tmp_path), option, str(place))
        assert result.exit_code == 2
        assert f"cannot be written ({reason}): pass another path" in flat(result.output)
    assert "'-' is not a file name" in flat(invoke(command, str(tmp_path), option, "-").output)
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_one_readable_panel(monkeypatch):
    raise_from(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    result = invoke("bench", "CartPole-v1")
    assert result.exit_code == 2
    assert "a file cannot be written (No space left on device)" in flat(result.output)


@pytest.mark.parametrize("error", [ZeroDivisionError("planted"), PermissionError(errno.EPERM, "of no file")])
def test_our_own_bugs_are_not_dressed_up(monkeypatch, error):
    raise_from(monkeypatch, error)
    assert invoke("bench", "CartPole-v1").exception is error


@dataclasses.dataclass
class FakeReport:
    reproduced: bool
    text: str = "what happened"


@pytest.mark.parametrize(("reproduced", "exit_code"), [(True, 0), (False, 1)])
def test_replay(monkeypatch, tmp_path, reproduced, exit_code):
    file = tmp_path / "failure.replay"
    file.write_bytes(b"")
    seen = []

    def fake_replay(path, announce):
        announce("what to expect")
        seen.append(path)
        return FakeReport(reproduced)

    monkeypatch.setattr(replay_module, "replay", fake_replay)
    result = invoke("replay", str(file))
    assert (result.exit_code, result.output.strip(), seen) == (exit_code, "what to expect\nwhat happened", [str(file)])


def test_replay_of_a_file_that_is_none(tmp_path):
    assert invoke("replay", str(tmp_path / "missing")).exit_code == 2
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("rubbish")
    result = invoke("replay", str(rubbish))
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_typer_or_rich_it_says_what_to_install(monkeypatch, capsys, missing):
    for name in [name for name in sys.modules if name.startswith("envfleet.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "pip install 'envfleet[cli]'" in capsys.readouterr().err
