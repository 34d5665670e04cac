"""Policies in files that other programs run: TorchScript and ONNX."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from envfleet.agents.agent import Agent
from envfleet.errors import InvalidArgument, MissingDependency
from envfleet.files import replacing


class ExportedPolicy(nn.Module):
    """What an agent does without exploration, as a module of its observations.

    Its arguments are the arrays of a batch of observations, one per part of the space in its order, in the space's own
    dtypes; it returns the actions, `(N, …)`.

    Args:
        agent: Whose policy; its weights are copied to the CPU.
    """

    def __init__(self, agent: Agent[Any]) -> None:
        super().__init__()
        self._packing = agent.packing
        self.network = copy.deepcopy(agent.best_actions()).cpu().eval().requires_grad_(False)

    def forward(self, *observations: Tensor) -> Tensor:
        """Return an action for every observation."""
        actions: Tensor = self.network(self._packing.join(list(observations)))
        return actions


def export_policy(agent: Agent[Any], path: str | Path) -> None:
    """Write the policy of an agent, without exploration, to a file that needs no envfleet to run.

    Inputs are the arrays of a batch of observations in their own dtypes, `(N, …)`: one named `observation`, or one for
    each part of a Dict or Tuple space, in ONNX files named by its path, such as `camera.image`; in TorchScript's they
    have no names, and are in the order of the space. The output, `action`, is `(N, …)`.

    Args:
        agent: Whose policy.
        path: `*.pt` for TorchScript, which `torch.jit.load` reads, or `*.onnx`, which onnxruntime and others do.

    Raises:
        InvalidArgument: The file has another suffix, or the agent does not say what its policy is.
        MissingDependency: ONNX is asked for, and `onnx` is not installed.
    """
    path = Path(path)
    if path.suffix not in {".pt", ".onnx"}:
        raise InvalidArgument(f"path={str(path)!r}, expected a name that ends in .pt or .onnx: change it")
    policy, parts = ExportedPolicy(agent), agent.packing.parts
    first = [np.full((2, *part.shape), getattr(part.space, "start", 0), part.space.dtype) for part in parts]
    examples = tuple(map(torch.from_numpy, first))  # a batch of 2; files take batches of any size
    with warnings.catch_warnings(), torch.no_grad(), replacing(path) as unfinished:
        # Both are said to have successors: torch.export, whose files only PyTorch reads, and an exporter on top of it,
        # which needs onnxscript besides.
        warnings.simplefilter("ignore")
        if path.suffix == ".pt":
            torch.jit.trace(policy, examples, check_trace=False).save(str(unfinished))  # type: ignore[no-untyped-call]
        else:
            _write_onnx(policy, examples, unfinished)


def _write_onnx(policy: ExportedPolicy, examples: tuple[Tensor, ...], path: Path) -> None:
    try:
        import onnx  # noqa: F401  # so that what is missing is said before torch fails
    except ImportError as error:
        raise MissingDependency("ONNX files need onnx, not installed here: pip install 'envfleet[export]'") from error
    names = [part.name for part in policy._packing.parts]  # noqa: SLF001  # of the class above
    options: Any = {"input_names": names, "output_names": ["action"], "dynamo": False}
    axes = {name: {0: "N"} for name in [*names, "action"]}
    torch.onnx.export(policy, examples, str(path), dynamic_axes=axes, **options)
