"""Fused layers against PyTorch's own."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from envfleet.rllib import dense
from envfleet.rllib.dense import FusedSequential, fuse_dense_layers


def network(activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 64), activation(), nn.Linear(64, 64, bias=False), activation(), nn.Linear(64, 2)
    )  # fmt: skip


def fused(plain: nn.Sequential) -> nn.Sequential:
    copied = copy.deepcopy(plain)
    fuse_dense_layers(copied)
    assert type(copied) is FusedSequential
    return copied


def calls_of_onednn(module: nn.Module, rows: Tensor) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        module(rows)
    return sum(event.name == "mkldnn::_linear_pointwise" for event in profile.events())


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("shape", [(1100, 5), (44, 25, 5)], ids=str)
def test_results_and_gradients_are_pytorchs(activation: type[nn.Module], shape: tuple[int, ...]) -> None:
    plain = network(activation)
    ours = fused(plain)
    rows, weights = torch.randn(shape), torch.randn(*shape[:-1], 2)
    tensors: list[list[Any]] = []
    for module in (plain, ours):
        inputs = rows.clone().requires_grad_()
        results = module(inputs) + module(-inputs)  # gradients of both uses add up
        (results * weights).sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(module(rows) + module(-rows), results.detach(), rtol=0, atol=1e-6)
        tensors.append([results.detach(), inputs.grad, *(parameter.grad for parameter in module.parameters())])
    for expected, actual in zip(*tensors, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5)


def test_what_it_is_for_goes_through_onednn() -> None:
    module, rows = fused(network()), torch.randn(1100, 5)
    assert calls_of_onednn(module, rows) == 2
    assert calls_of_onednn(module, rows[:300]) == 0  # too few
    with torch.no_grad():
        assert calls_of_onednn(module, rows[:300]) == 2
        assert calls_of_onednn(module, rows[:200]) == 0
    assert calls_of_onednn(module.double(), rows.double()) == 0


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_trace_is_pytorchs_own_and_leaves_no_trace() -> None:
    module, rows = fused(network()), torch.randn(1100, 5)
    dense._has_onednn.cache_clear()
    with torch.no_grad():
        traced = torch.jit.trace(module, rows)
    assert "mkldnn" not in str(traced.inlined_graph)
    assert calls_of_onednn(module, rows) == 2


@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")  # of the flags
def test_it_leaves_alone_what_it_may_not_touch() -> None:
    module, rows, seen = fused(network()), torch.randn(1100, 5), list[Any]()
    with torch.backends.mkldnn.flags(enabled=False):
        assert calls_of_onednn(module, rows) == 0
    module[0].register_forward_hook(lambda *args: seen.append(args[2].shape))
    assert calls_of_onednn(module, rows) == 1
    assert seen == [(1100, 64)]
    module[2].register_full_backward_pre_hook(lambda *args: seen.append("backward"))
    assert calls_of_onednn(module, rows) == 0
    module(rows).sum().backward()
    assert seen[-1] == "backward"
    with torch.autocast("cpu"):
        assert module(rows).dtype is torch.bfloat16


def drop_operation(*_: Any) -> Any:
    raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")


def take_other_arguments(*args: Any) -> Any:
    return torch.ops.mkldnn._linear_pointwise(*args[:3])


@pytest.mark.parametrize("change", [drop_operation, take_other_arguments])
def test_another_pytorch_computes_its_own_way(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, rows = network(), torch.randn(1100, 5)
    monkeypatch.setattr(dense, "_linear", change)
    monkeypatch.setattr(dense, "_has_onednn", functools.cache(dense._has_onednn.__wrapped__))  # as in a new process
    torch.testing.assert_close(fused(plain)(rows), plain(rows), rtol=0, atol=0)


def test_states_and_copies_are_those_of_the_plain_module() -> None:
    plain = network()
    module = fused(plain)
    assert module.state_dict().keys() == plain.state_dict().keys()
    rows = torch.randn(1100, 5)
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(rows), plain(rows), rtol=0, atol=1e-6)
