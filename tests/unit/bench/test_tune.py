"""The search on a fake with a known best fleet and a simulated clock."""

import itertools
import json
import random

import pytest
from tests.unit.bench.fakes import NULL

from envfleet.bench.child import ChildFailed
from envfleet.bench.results import figures_json
from envfleet.bench.tune import Candidate, NothingWorked, Trial, explain, search, search_space, tune
from envfleet.bench.workloads import resolve
from envfleet.errors import InvalidArgument


class FakeEvaluator:
    """Knows every candidate's speed; building takes a fixed time; measurements are noisy, less so if longer."""

    def __init__(self, speed, build_s=0.3, noise=0.0, faulty=()):
        self.now, self.speed, self.build_s, self.noise, self.faulty = 0.0, speed, build_s, noise, faulty
        self.opened, self.kept, self.time_on = [], [], {}
        self.rng = random.Random(0)

    def clock(self):
        return self.now

    def measure(self, candidate, seconds):
        if candidate not in self.opened:
            self.opened.append(candidate)
            self.now += self.build_s
        if candidate in self.faulty:
            raise ChildFailed("planted")
        self.now += seconds
        self.time_on[candidate] = self.time_on.get(candidate, 0.0) + seconds
        return self.speed(candidate) * (1 + self.rng.uniform(-1, 1) * self.noise / (1 + 10 * seconds))

    def keep(self, candidates):
        self.kept.append(list(candidates))


def run_search(evaluator, candidates, seconds=30.0):
    fractions = []
    ranking = search(candidates, evaluator, seconds, lambda text, fraction: fractions.append(fraction), evaluator.clock)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    return ranking


SPACE = search_space(4)


@pytest.mark.parametrize("best", SPACE[::5], ids=Candidate.arguments)
def test_it_finds_the_known_best(best):
    evaluator = FakeEvaluator(lambda candidate: 2_000.0 if candidate == best else 1_000.0, build_s=0.1, noise=0.3)
    trials, failures = run_search(evaluator, SPACE)
    assert trials[0].candidate == best
    assert not failures


def test_it_keeps_to_the_time_and_to_ever_fewer_fleets():
    evaluator = FakeEvaluator(lambda candidate: 1_000.0)
    run_search(evaluator, SPACE, seconds=20.0)
    assert evaluator.now < 20.5
    assert all(set(later) <= set(earlier) for earlier, later in itertools.pairwise(evaluator.kept))
    assert len(evaluator.kept[-1]) <= 3


def test_with_little_time_the_promising_ones_are_tried_first():
    evaluator = FakeEvaluator(lambda candidate: 1_000.0, build_s=1.0)
    trials, _ = run_search(evaluator, SPACE, seconds=6.0)
    tried = {trial.candidate for trial in trials}
    assert len(tried) < len(SPACE)
    assert tried <= set(SPACE[: len(tried)])
    assert {candidate.backend for candidate in tried} >= {"serial", "process"}


def test_more_time_goes_to_the_better_half():
    evaluator = FakeEvaluator(lambda candidate: 1_000.0 + 100 * SPACE.index(candidate), build_s=0.1)
    run_search(evaluator, SPACE)
    assert evaluator.time_on[SPACE[-1]] > 3 * evaluator.time_on[SPACE[1]]


def test_the_best_single_process_stays_to_the_end():
    evaluator = FakeEvaluator(lambda candidate: 10.0 if candidate.backend == "serial" else 1_000.0 + candidate.num_envs)
    run_search(evaluator, SPACE)
    assert [candidate.backend for candidate in evaluator.kept[-1]].count("serial") == 1


def test_within_the_noise_the_simpler_fleet_wins():
    def speed(candidate):
        return 1_000.0 if candidate.backend == "serial" else 1_020.0

    trials, _ = run_search(FakeEvaluator(speed), SPACE)
    assert trials[0].candidate.backend == "serial"


class Shaky(FakeEvaluator):
    """All candidates are equally fast, or processes twice as fast, and every measurement is off by up to a quarter."""

    def __init__(self, seed, gain):
        super().__init__(lambda candidate: 1_000.0 * (gain if candidate.backend == "process" else 1.0), build_s=0.05)
        self.rng = random.Random(seed)

    def measure(self, candidate, seconds):
        return super().measure(candidate, seconds) * self.rng.uniform(0.75, 1.25)


@pytest.mark.parametrize("num_envs", [None, 8])
def test_noise_leaves_only_clear_recommendations(num_envs):
    space = search_space(2, num_envs)
    winners = {gain: [run_search(Shaky(seed, gain), space)[0][0] for seed in range(20)] for gain in (1.0, 2.0)}
    assert {trial.candidate.backend for trial in winners[1.0]} == {"serial"}
    assert {trial.candidate.backend for trial in winners[2.0]} == {"process"}


def test_of_backends_that_are_as_fast_the_simplest_wins():
    def speed(candidate):
        return 1_000.0 if candidate.backend == "serial" else 2_000.0

    assert run_search(FakeEvaluator(speed), search_space(2, 8))[0][0].candidate == Candidate("thread", 8, 2)


def test_failures_are_reported_and_never_win():
    faulty = [candidate for candidate in SPACE if candidate.backend == "process"]
    trials, failures = run_search(FakeEvaluator(lambda candidate: 1_000.0, 0.1, faulty=faulty), SPACE)
    assert set(failures) == set(faulty)
    assert all(trial.candidate.backend != "process" for trial in trials)


def test_all_fail():
    trials, failures = run_search(FakeEvaluator(lambda candidate: 1.0, 0.1, faulty=SPACE), SPACE)
    assert not trials
    assert len(failures) == len(SPACE)


def test_an_env_that_cannot_be_built_is_told():
    with pytest.raises(NothingWorked, match="planted in the constructor"):
        tune(resolve("tests.unit.bench.fakes:broken"), search_space(1, 2, ["serial"]), 5.0, lambda text, fraction: None)


def test_a_real_search():
    lines = []
    tuning = tune(NULL, search_space(2, 4), 3.0, lambda text, fraction: lines.append(text))
    assert tuning.trials[0].rate > 0
    assert tuning.best_line.startswith(f'envfleet.make("{NULL.source}", num_envs=4, backend=')
    assert tuning.best_line.endswith(", num_keys=0)")
    data = json.loads(figures_json("tune", tuning))
    assert (data["kind"], data["schema_version"]) == ("envfleet.tune", 1)
    assert data["trials"][0]["candidate"]["num_envs"] == 4


def test_the_search_space():
    for cores, num_envs in itertools.product((1, 2, 16, 64), (None, 1, 7, 8)):
        space = search_space(cores, num_envs)
        assert len(set(space)) == len(space)
        for candidate in space:
            assert 1 <= candidate.workers <= candidate.num_envs
            assert num_envs in (None, candidate.num_envs)
    assert all(candidate.backend == "serial" for candidate in search_space(4, None, ["serial"]))
    with pytest.raises(InvalidArgument, match="ray"):
        search_space(4, None, ["ray"])
    with pytest.raises(InvalidArgument, match="num_envs=0"):
        search_space(4, 0)


def test_arguments_are_what_make_takes():
    assert Candidate("serial", 8, 1).arguments() == 'num_envs=8, backend="serial"'
    assert Candidate("process", 8, 2).arguments() == 'num_envs=8, backend="process", workers=2'


def trials_of(*trials):
    return [Trial((rate, rate), candidate) for candidate, rate in trials]


def test_reasons():
    processes, serial = Candidate("process", 64, 2), Candidate("serial", 32, 1)
    assert explain(trials_of((processes, 1_800.0), (serial, 1_000.0))) == [
        '1.80× the best single process, num_envs=32, backend="serial"',
    ]
    runner_up, with_workers = explain(
        trials_of((serial, 1_000.0), (Candidate("serial", 8, 1), 995.0), (processes, 990.0))
    )
    assert runner_up == '1.01× the runner-up, num_envs=8, backend="serial": within the spread'
    assert with_workers.startswith("1.01× the best with workers")
    assert with_workers.endswith("within the spread, and this one is simpler")
    assert explain(trials_of((serial, 1.0))) == ["No other fleet could be measured."]
