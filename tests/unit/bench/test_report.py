"""Reports of the benchmark as text."""

import dataclasses
import io

from rich.console import Console
from tests.unit.bench.samples import entry, report, run

from envfleet.bench.report import advice, notes, show_report

LOOP = entry("loop", 1_000, 1_000, label="bare Python loop")
ASYNC = entry("gymnasium-async", 500, 500, label="Gymnasium AsyncVectorEnv")
SERIAL = entry("envfleet-serial", 900, 900)
PROCESS = entry("envfleet-process", 2_400, 2_400)


def text_of(*runs, width=110):
    file = io.StringIO()
    console = Console(file=file, width=width)
    show_report(report(*runs), console)
    return file.getvalue()


def row_of(text, label):
    """Find a row, up to the time that every contender here took to start."""
    return next(line for line in text.splitlines() if line.startswith(label)).partition("500 ms")[0].split()


def test_the_table_has_rates_and_ratios_of_both_backends():
    text = text_of(run(LOOP, ASYNC, SERIAL, PROCESS, entry("envfleet-auto", 2_000)))
    assert row_of(text, "contender")[1:] == ["steps/s", "×", "loop", "is", "is", "start", "per", "env"]
    assert row_of(text, "Gymnasium AsyncVectorEnv")[-3:] == ["0.50", "1.80×", "4.80×"]
    assert row_of(text, "envfleet auto")[-3:] == ["2.00", "0.45×", "1.20×"]
    assert row_of(text, "envfleet serial")[-2:] == ["0.90", "2.67×"]  # of itself nothing
    assert "a processor · 2 of 4 cores usable" in text


def test_without_both_backends_others_of_ours_are_compared():
    text = text_of(run(LOOP, entry("envfleet-thread", 500)))
    assert row_of(text, "bare Python loop")[-2:] == ["1.00", "0.50×"]
    assert row_of(text_of(run(LOOP)), "bare Python loop")[-1] == "1.00"


def test_a_kernel_is_compared_as_any_fleet_of_ours():
    text = text_of(run(LOOP, SERIAL, entry("envfleet-kernel", 50_000), workload="envfleet/CartPole-v1"))
    assert row_of(text, "bare Python loop")[-2:] == ["0.90×", "50×"]


def test_fastest_first():
    text = text_of(run(ASYNC, LOOP, PROCESS))
    assert text.index("envfleet process") < text.index("bare Python loop") < text.index("Gymnasium AsyncVectorEnv")


def test_a_compiled_twin_is_recommended_next_to_the_best_fleet():
    result = run(LOOP, ASYNC, SERIAL, entry("envfleet-kernel", 50_000))
    sentence = advice(result) or ""
    assert sentence.startswith('Use envfleet.make(…, backend="serial"): 1.80× the steps of Gymnasium AsyncVectorEnv')
    assert 'use envfleet.make(…, backend="kernel"), the compiled twin of CartPole-v1: 50× the steps of a' in sentence
    assert row_of(text_of(result), "Gymnasium AsyncVectorEnv")[-1] == "1.80×"  # of envfleet serial


def test_the_advice_names_the_fastest_fleet_or_auto():
    assert "serial" in (advice(run(LOOP, ASYNC, SERIAL, entry("envfleet-auto", 500, 500))) or "")
    assert "auto" in (advice(run(LOOP, ASYNC, SERIAL, entry("envfleet-auto", 890, 890))) or "")


def test_the_advice_admits_a_faster_peer():
    sentence = advice(run(LOOP, entry("envpool", 1_800, 1_800, label="EnvPool"), SERIAL)) or ""
    assert sentence.endswith("our fastest fleet here; EnvPool makes 2.00× its steps.")


def test_advice_without_peers_or_fleets():
    assert (advice(run(LOOP, SERIAL)) or "").endswith(": the fastest fleet measured here.")
    assert advice(run(LOOP, ASYNC)) is None


def test_missing_and_failed_contenders_are_named():
    absent = dataclasses.replace(entry("envpool", label="EnvPool"), problem="not installed: pip install x")
    failed = dataclasses.replace(entry("sb3-dummy", label="SB3 DummyVecEnv"), problem="It broke.")
    lines = notes(run(LOOP, absent, failed))
    assert lines == ["Not measured: EnvPool: not installed: pip install x.", "Not measured: SB3 DummyVecEnv: It broke."]
    assert "EnvPool" in text_of(run(LOOP, absent))


def test_a_noisy_machine_is_reported():
    assert "noisy" in notes(run(entry("loop", 1_000, 2_000)))[0]
    assert not notes(run(LOOP))


def test_a_terminal_of_80_columns_is_wide_enough():
    slow = dataclasses.replace(ASYNC, start_s=0.123)
    result = run(entry("envfleet-kernel", 12_345_678), LOOP, SERIAL, PROCESS, slow)
    wide, narrow = (text_of(result, width=width) for width in (110, 80))
    for one in result.entries:
        assert row_of(narrow, one.label) == row_of(wide, one.label)
    assert max(map(len, narrow.splitlines())) <= 80


def test_nothing_measured_still_prints():
    failed = dataclasses.replace(entry("loop", label="bare Python loop"), problem="boom")
    assert "Not measured: bare Python loop: boom." in text_of(run(failed))


def test_markup_in_names_is_text():
    assert "[red]x" in text_of(run(dataclasses.replace(LOOP, rates=(), problem="[red]x")))
