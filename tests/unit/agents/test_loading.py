"""Agents out of files: what is read, and what is refused."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.agents.samples import KINDS, OBSERVATIONS, TORQUE, Run, is_equal, make

from envfleet.agents import SAC, SACConfig, load_agent, saving
from envfleet.errors import InvalidArgument


class OfGpu:
    """A generator with the 16 bytes of state that those of CUDA have."""

    def get_state(self) -> torch.Tensor:
        return torch.arange(16, dtype=torch.uint8)


def test_a_file_is_enough_to_make_the_agent(kind: Any, tmp_path: Path) -> None:
    agent = make(kind)
    Run(agent).go_on(8)
    observations = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    expected = agent.act_batch(observations, deterministic=True)
    for contents, num_envs in itertools.product(("weights", "learner", "all"), (None, 5)):
        path = tmp_path / f"{contents}.pt"
        agent.save(path, contents=contents)
        loaded = load_agent(path, num_envs=num_envs)
        assert type(loaded) is type(agent)
        assert loaded.config == agent.config
        assert np.array_equal(loaded.act_batch(observations, deterministic=True), expected)
        if contents != "weights" and num_envs is None:
            assert loaded.num_updates == agent.num_updates


def test_replay_memory_is_allocated_at_the_first_transition(tmp_path: Path) -> None:
    path, config = tmp_path / "agent.pt", SACConfig(capacity=10**15, replay_device="cuda:99", hidden=(8,))
    SAC(OBSERVATIONS, TORQUE, config).save(path)
    agent = load_agent(path)
    assert agent.act_batch(np.zeros((2, 3))).shape == (2, *TORQUE.shape)
    with pytest.raises((RuntimeError, AssertionError)):  # torch's, on any machine
        agent.state_dict("all")


def test_the_generator_of_a_gpu_stays_behind(kind: Any, tmp_path: Path) -> None:
    agent = make(kind)
    agent.random.torch = OfGpu()
    agent.save(tmp_path / "agent.pt")
    loaded = load_agent(tmp_path / "agent.pt", seed=4)
    assert is_equal(loaded, agent)
    assert torch.equal(loaded.random.torch.get_state(), make(kind, seed=4).random.torch.get_state())


def test_what_is_no_saved_agent_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    for junk in (b"not a file of ours", b"hello", b"", b"PK\x03\x04"):
        path.write_bytes(junk)
        with pytest.raises(InvalidArgument, match="cannot be read as a saved agent") as caught:
            load_agent(path)
        assert "weights_only" not in str(caught.value)
    torch.save({"format": saving.FORMAT}, path)
    with pytest.raises(InvalidArgument, match=r"the agent in .*agent.pt is '', expected 'module:name'"):
        load_agent(path)
    torch.save({"format": 99}, path)
    with pytest.raises(InvalidArgument, match="has format 99, expected 5"):
        load_agent(path)
    torch.save({"format": saving.FORMAT, "run": print}, path)  # code, or the name of some, is not read
    with pytest.raises(InvalidArgument, match="cannot be read"):
        load_agent(path)
    with zipfile.ZipFile(path, "w") as archive:  # as Stable-Baselines3 writes its models
        archive.writestr("data", "{}")
        archive.writestr("_stable_baselines3_version", "2.9.2")
    with pytest.raises(InvalidArgument, match="is a model of Stable-Baselines3, not a saved agent: load it"):
        load_agent(path)
    make(KINDS["sac"]).save(path)
    with pytest.raises(InvalidArgument, match="holds a SAC, this is a TD3"):
        make(KINDS["td3"]).load(path)
    wider = SAC(OBSERVATIONS, TORQUE, SACConfig(hidden=(17,)), num_envs=3)
    with pytest.raises(InvalidArgument, match="do not fit the network 'actor'"):
        wider.load(path)
    with pytest.raises(InvalidArgument, match=r"none.pt cannot be read \(No such file or directory\): pass the folder"):
        load_agent(tmp_path / "none.pt")


def test_files_whose_bytes_changed_are_refused(tmp_path: Path) -> None:
    path, agent, rng = tmp_path / "agent.pt", make(KINDS["sac"]), np.random.default_rng(0)
    agent.save(path)
    whole, refusals = path.read_bytes(), list[str]()
    places = [
        *rng.integers(len(whole) - 4, size=60),
        *rng.integers(whole.index(b"PK\x01\x02"), len(whole) - 4, size=60),
    ]
    for place in map(int, places):  # the second half in the directory of the archive
        path.write_bytes(whole[:place] + bytes(255 - byte for byte in whole[place : place + 4]) + whole[place + 4 :])
        try:
            loaded = load_agent(path)
        except InvalidArgument as error:
            refusals.append(str(error))
        else:  # bytes between the parts of the archive, which mean nothing
            assert is_equal(loaded, agent)
    assert len(refusals) > 60
    assert all(message.startswith(f"{path} ") for message in refusals)
