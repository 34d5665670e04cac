"""Export of policies to TorchScript and ONNX."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from envfleet.agents.agent import Agent
from envfleet.errors import InvalidArgument
from envfleet.extras import missing
from envfleet.files import replacing


class ExportedPolicy(nn.Module):
    """Deterministic policy of an agent as a module.

    Its arguments are the arrays of a batch of observations, one per part of the space in its order, in the dtypes of
    the space; it returns actions, `(N, …)`.

    Args:
        agent: Agent to export; its weights are copied to the CPU.
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
    """Write the deterministic policy of an agent to a file that runs without envfleet.

    The inputs are the arrays of a batch of observations in the dtypes of the space, `(N, …)`: one named `observation`,
    or one per part of a Dict or Tuple space. ONNX names a part by its path, such as `camera.image`; TorchScript
    takes the parts by position, in the order of the space. The output is `action`, `(N, …)`.

    Args:
        agent: Agent to export.
        path: Path that ends in `.pt` for TorchScript (read it with `torch.jit.load`) or in `.onnx`.

    Raises:
        InvalidArgument: The file has another suffix, or the agent does not define `best_actions`.
        MissingDependency: `onnx` is not installed, for an ONNX file.
    """
    path = Path(path)
    if path.suffix not in {".pt", ".onnx"}:
        raise InvalidArgument(f"path={str(path)!r}, expected a name that ends in .pt or .onnx: change it")
    policy, parts = ExportedPolicy(agent), agent.packing.parts
    first = [np.full((2, *part.shape), getattr(part.space, "start", 0), part.space.dtype) for part in parts]
    examples = tuple(map(torch.from_numpy, first))  # a batch of 2; files take batches of any size
    with warnings.catch_warnings(), torch.no_grad(), replacing(path) as unfinished:
        # Both exporters warn that they are deprecated. The files of torch.export can only be read by PyTorch, and the
        # new ONNX exporter additionally needs onnxscript.
        warnings.simplefilter("ignore")
        if path.suffix == ".pt":
            torch.jit.trace(policy, examples, check_trace=False).save(str(unfinished))  # type: ignore[no-untyped-call]
        else:
            _write_onnx(policy, examples, unfinished)


def _write_onnx(policy: ExportedPolicy, examples: tuple[Tensor, ...], path: Path) -> None:
    try:
        import onnx  # noqa: F401  # so that what is missing is said before torch fails
    except ImportError as error:
        raise missing("an ONNX file", error) from error
    names = [part.name for part in policy._packing.parts]  # noqa: SLF001  # of the class above
    options: Any = {"input_names": names, "output_names": ["action"], "dynamo": False}
    axes = {name: {0: "N"} for name in [*names, "action"]}
    torch.onnx.export(policy, examples, str(path), dynamic_axes=axes, **options)
