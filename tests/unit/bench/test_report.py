"""What a person reads."""

import dataclasses
import io

from rich.console import Console
from tests.unit.bench.samples import entry, report, run

from envfleet.bench.report import conclusions, cost_table, notes, show_report

LOOP = entry("loop", 1_000, 1_000, label="bare Python loop")
ASYNC = entry("gymnasium-async", 500, 500, label="Gymnasium AsyncVectorEnv")
SERIAL = entry("envfleet-serial", 900, 900)
PROCESS = entry("envfleet-process", 2_400, 2_400)


def text_of(*runs, width=110):
    file = io.StringIO()
    console = Console(file=file, width=width)
    show_report(report(*runs), console)
    return file.getvalue()


def test_the_table_has_speeds_and_ratios():
    lines = text_of(run(LOOP, ASYNC, SERIAL, PROCESS)).splitlines()
    row = next(line for line in lines if line.startswith("Gymnasium AsyncVectorEnv"))
    assert row.split()[-2:] == ["0.50", "4.80×"]
    assert any("a processor · 2 of 4 cores usable" in line for line in lines)


def test_fastest_first():
    text = text_of(run(ASYNC, LOOP, PROCESS))
    assert text.index("envfleet process") < text.index("bare Python loop") < text.index("Gymnasium AsyncVectorEnv")


def test_the_sentence_at_the_end():
    lines = conclusions(run(LOOP, ASYNC, SERIAL, PROCESS))
    assert lines[0] == "envfleet process is 4.80× Gymnasium AsyncVectorEnv here."
    assert "envfleet serial is 0.90× the bare Python loop here." in lines
    assert "worker processes pay, 2.7× one process" in lines[-1]


def test_it_says_when_processes_do_not_pay():
    assert "one process is faster" in conclusions(run(LOOP, SERIAL, entry("envfleet-process", 100)))[-1]
    assert "about as fast" in conclusions(run(LOOP, SERIAL, entry("envfleet-process", 900)))[-1]
    assert "here." in conclusions(run(LOOP, SERIAL))[-1]


def test_a_compiled_twin_is_named_and_compared_with_nobody_else():
    found = run(LOOP, ASYNC, SERIAL, entry("envfleet-process", 100), entry("envfleet-kernel", 50_000))
    *_, verdict, twin = conclusions(found)
    assert "one process is faster" in verdict
    assert "envfleet kernel is envfleet/CartPole-v1, the compiled twin of CartPole-v1: 50× the bare loop here." in twin
    assert 'envfleet.make("envfleet/CartPole-v1", num_envs=8, backend="kernel")' in twin
    row = next(line for line in text_of(found).splitlines() if line.startswith("Gymnasium AsyncVectorEnv"))
    assert row.split()[-1] == "1.80×"  # of envfleet serial


def test_nothing_is_said_against_processes_that_had_no_cores():
    samples = [dataclasses.replace(sample, cpu_s=0.2) for sample in LOOP.samples]
    loop = dataclasses.replace(LOOP, samples=tuple(samples))
    found = run(loop, SERIAL, entry("envfleet-process", 100))
    assert "one process" not in conclusions(found)[-1]
    assert "20% of a core: other work took the rest, or the environment waits" in notes(found)[0]
    assert "worker processes pay" in conclusions(run(loop, SERIAL, PROCESS))[-1]


def test_missing_and_failed_contenders_are_named():
    absent = dataclasses.replace(
        entry("envpool", label="EnvPool"), status="absent", reason="not installed: pip install x"
    )
    failed = dataclasses.replace(entry("sb3-dummy", label="SB3 DummyVecEnv"), status="failed", reason="It broke.")
    lines = notes(run(LOOP, absent, failed))
    assert lines == ["Left out: EnvPool: not installed: pip install x.", "Failed: SB3 DummyVecEnv: It broke."]
    assert "EnvPool" in text_of(run(LOOP, absent))


def test_a_noisy_machine_is_told():
    assert "noisy" in notes(run(entry("loop", 1_000, 2_000)))[0]
    assert not notes(run(LOOP))


def test_a_close_that_failed_is_told():
    assert "did not close" in notes(run(dataclasses.replace(ASYNC, close_s=None)))[0]


def test_narrow_terminals_get_fewer_columns():
    wide, narrow = cost_table(run(LOOP)), cost_table(run(LOOP), is_narrow=True)
    assert len(narrow.columns) < len(wide.columns)
    assert max(len(line) for line in text_of(run(LOOP, ASYNC, SERIAL), width=80).splitlines()[3:8]) <= 80


def test_nothing_measured_still_prints():
    failed = dataclasses.replace(entry("loop", label="bare Python loop"), status="failed", reason="boom")
    assert "Failed: bare Python loop: boom." in text_of(run(failed))


def test_markup_in_names_is_text():
    assert "[red]x" in text_of(run(dataclasses.replace(LOOP, status="failed", reason="[red]x")))
