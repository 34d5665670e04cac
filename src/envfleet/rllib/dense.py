"""Dense layers fused with their activations."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}  # torch's class: oneDNN's name
# Below so many outputs of a layer, calling oneDNN costs more than it saves.
_FEWEST_RESULTS, _FEWEST_RESULTS_WITH_GRADIENTS = 16_384, 65_536


class FusedSequential(nn.Sequential):
    """A `torch.nn.Sequential` that computes `Linear` and the `Tanh` or `ReLU` after it in one call of oneDNN.

    PyTorch multiplies float32 matrices by MKL, which uses half of the vector width of processors other than Intel's,
    and applies the activation in a second pass. Results and gradients are the same except for rounding; layers,
    parameters and states are those of the original module. It behaves as an ordinary `Sequential` on other devices, in
    other dtypes, with autocast, under `torch.compile` and `torch.jit.trace`, with hooks on a layer, and if
    `torch.backends.mkldnn` is off. Second derivatives raise an error.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Pass the input through all layers.

        Args:
            input: Rows, `(…, features)`.
        """
        if not _is_fit(input):
            plain: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return plain
        num_rows = input.numel() // input.shape[-1]
        fewest = _FEWEST_RESULTS_WITH_GRADIENTS if torch.is_grad_enabled() else _FEWEST_RESULTS
        results, layers = input, list[Any](self)
        while layers:
            layer = layers.pop(0)
            activation = _activation_after(layer, layers[0]) if layers else None
            if activation is not None and num_rows * layer.out_features >= fewest:
                results = _Dense.apply(results, layer.weight, layer.bias, activation)  # type: ignore[no-untyped-call]
                layers.pop(0)
            else:
                results = layer(results)
        return results


def fuse_dense_layers(module: nn.Module) -> None:
    """Turn each `torch.nn.Sequential` within a module into a `FusedSequential`, in place.

    Args:
        module: Any module.
    """
    for part in module.modules():
        if type(part) is nn.Sequential:
            part.__class__ = FusedSequential


class _Dense(torch.autograd.Function):
    """Dense layer with its activation; the gradient is computed from the outputs."""

    @staticmethod
    def forward(context: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        results = _linear(rows, weight, bias, activation)
        context.save_for_backward(rows, weight, results)
        context.activation, context.has_bias = activation, bias is not None
        return results

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        rows, weight, results = context.saved_tensors
        if context.activation == "tanh":
            inner = torch.ops.aten.tanh_backward(gradient, results)
        else:
            inner = torch.ops.aten.threshold_backward(gradient, results, 0)
        of_rows = _linear(inner, weight.t().contiguous(), None, "none") if context.needs_input_grad[0] else None
        inner = inner.flatten(0, -2)  # (…, out) -> (rows, out)
        of_weight = inner.t() @ rows.flatten(0, -2)
        return of_rows, of_weight, inner.sum(0) if context.has_bias else None, None


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    results: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, activation, [], "")  # noqa: SLF001
    return results


@functools.cache
def _has_onednn() -> bool:
    """Return whether PyTorch has the fused operation with these arguments; it is private to its compiler."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    ones = torch.ones(2, 2, dtype=torch.float32, device="cpu")
    try:
        return torch.allclose(_linear(ones, ones, ones[0], "tanh"), torch.tanh(ones @ ones + 1))
    except (AttributeError, RuntimeError):  # missing, or with other arguments
        return False


def _is_fit(tensor: Tensor) -> bool:
    return (
        not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # checked first, because sizes are tensors while tracing
        and tensor.device.type == "cpu"
        and tensor.dtype is torch.float32
        and tensor.dim() > 1
        and tensor.numel() > 0
        and bool(torch.backends.mkldnn.enabled)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and _has_onednn()
    )


def _activation_after(layer: nn.Module, follower: nn.Module) -> str | None:
    """Return oneDNN's name of the activation after a dense layer; `None` if the two cannot be fused."""
    if type(layer) is not nn.Linear or _has_hooks(layer) or _has_hooks(follower):
        return None
    return _ACTIVATIONS.get(type(follower))


def _has_hooks(module: nn.Module) -> bool:
    forward = module._forward_hooks or module._forward_pre_hooks  # noqa: SLF001
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)  # noqa: SLF001
