"""The source of a network evaluated on blocks of rows.

A block's activations lie as `(width, BLOCK_ROWS)`, so that the innermost loops run over rows, which the compiler
vectorises without reordering any sum; the block's length is fixed, and short blocks are filled up with zeros, so that
every row takes the same path through the vector unit wherever it stands. Hence the same observation gives the same
action for any number of rows and threads, although products and sums may be contracted.
"""

from __future__ import annotations

from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.rollouts.policies import MLP

BLOCK_ROWS = 64
_OUTPUTS_AT_ONCE, _INPUTS_AT_ONCE = 4, 8  # what 32 vector registers hold

_LAYER = """
@numba.njit(fastmath={{"contract"}}, **DISTINCT)
def layer_{index}(inputs, x, y):
{loops}
"""


def scratch_size(policy: MLP) -> int:
    """Float32 numbers of scratch memory: two activations of the widest layer."""
    return 2 * max(policy.sizes) * BLOCK_ROWS


def mlp_source(spec: KernelSpec, policy: MLP) -> str:
    """Write the layers and the `choose` of a network that fits the kernel's spaces."""
    sizes = policy.sizes
    parts, place = [], 0
    for index in range(len(sizes) - 1):
        is_last = index == len(sizes) - 2
        parts.append(_layer(index, sizes, place, "" if is_last else policy.activation))
        place += (sizes[index] + 1) * sizes[index + 1]
    calls = "\n".join(
        f"        layer_{k}(inputs, {_half(policy, k)}, {_half(policy, k + 1)})" for k in range(len(sizes) - 1)
    )
    width = sizes[0]
    parts.append(f"""
@inner
def choose(m, observations, actions, generators, inputs, scratch):
    x = {_half(policy, 0)}
    y = {_half(policy, len(sizes) - 1)}
    for low in range(0, m, {BLOCK_ROWS}):
        rows = min({BLOCK_ROWS}, m - low)
        if rows < {BLOCK_ROWS}:
            x[:] = numba.float32(0.0)
        for r in range(rows):
            for k in range({width}):
                x[k, r] = observations[(low + r) * {width} + k]
{calls}
{_head(spec, policy, place)}
""")
    return "\n".join(parts)


def _half(policy: MLP, layer: int) -> str:
    """The activations before a layer: halves of the scratch memory take turns."""
    width, start = policy.sizes[layer], scratch_size(policy) // 2 * (layer % 2)
    return f"scratch[{start} : {start + width * BLOCK_ROWS}].reshape(({width}, {BLOCK_ROWS}))"


def _layer(index: int, sizes: tuple[int, ...], place: int, activation: str) -> str:
    """A layer whose weights begin at `place` in `inputs`."""
    inputs, outputs = sizes[index], sizes[index + 1]
    whole = outputs - outputs % _OUTPUTS_AT_ONCE
    lines = []
    if whole:
        lines += [f"for j in range(0, {whole}, {_OUTPUTS_AT_ONCE}):"]
        lines += _indent(_outputs(inputs, outputs, _OUTPUTS_AT_ONCE, place))
    if outputs > whole:
        lines += [f"j = {whole}", *_outputs(inputs, outputs, outputs - whole, place)]
    if activation:
        lines += [f"for j in range({outputs}):", f"    for r in range({BLOCK_ROWS}):"]
        lines += [f"        y[j, r] = {activation}_(y[j, r])"]
    return _LAYER.format(index=index, loops="\n".join(_indent(lines)))


def _outputs(inputs: int, outputs: int, count: int, place: int) -> list[str]:
    """Outputs `j` to `j + count - 1` of every row."""
    lines = [f"bias{n} = inputs[{place + inputs * outputs} + j + {n}]" for n in range(count)]
    lines += [f"for r in range({BLOCK_ROWS}):", *(f"    y[j + {n}, r] = bias{n}" for n in range(count))]
    lines += [f"first{n} = {place} + (j + {n}) * {inputs}" for n in range(count)]
    whole = inputs - inputs % _INPUTS_AT_ONCE
    if whole:
        lines += [f"for k in range(0, {whole}, {_INPUTS_AT_ONCE}):", *_indent(_products(count, _INPUTS_AT_ONCE))]
    if inputs > whole:
        lines += [f"k = {whole}", *_products(count, inputs - whole)]
    return lines


def _products(num_outputs: int, num_inputs: int) -> list[str]:
    """Add the products of inputs `k`, `k + 1`, … to outputs `j`, `j + 1`, … of every row."""
    outputs, inputs = range(num_outputs), range(num_inputs)
    lines = [f"w{n}_{e} = inputs[first{n} + k + {e}]" for n in outputs for e in inputs]
    lines += [f"for r in range({BLOCK_ROWS}):"]
    lines += [f"    total{n} = y[j + {n}, r]" for n in outputs]
    for e in inputs:
        lines += [f"    input{e} = x[k + {e}, r]", *(f"    total{n} = total{n} + w{n}_{e} * input{e}" for n in outputs)]
    return lines + [f"    y[j + {n}, r] = total{n}" for n in outputs]


def _indent(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _head(spec: KernelSpec, policy: MLP, place: int) -> str:
    """Turn the outputs `y` of a block into actions; `place` is where the standard deviations stand in `inputs`."""
    outputs = policy.sizes[-1]
    if policy.head == "argmax":
        return f"""
        for r in range(rows):
            best = 0
            for j in range(1, {outputs}):
                if y[j, r] > y[best, r]:
                    best = j
            actions[low + r] = {_start(spec)} + best
"""
    if policy.head == "categorical":
        # Sums of probabilities up to each choice take the place of the outputs; a draw falls between two of them.
        return f"""
        for r in range({BLOCK_ROWS}):
            most = y[0, r]
            for j in range(1, {outputs}):
                most = max(most, y[j, r])
            total = numba.float32(0.0)
            for j in range({outputs}):
                total = total + exp_(y[j, r] - most)
                y[j, r] = total
        for r in range(rows):
            place = generators[low + r].random() * y[{outputs - 1}, r]
            chosen = 0
            for j in range({outputs - 1}):
                chosen += 1 if y[j, r] <= place else 0
            actions[low + r] = {_start(spec)} + chosen
"""
    noise = "generators[low + r].standard_normal()"
    value = f"y[j, r] + inputs[{place} + j] * {noise}" if policy.log_std is not None else "y[j, r]"
    if policy.head in ("tanh", "tanh_gaussian"):
        value = f"choice_low[j] + (tanh_(numba.float32({value})) + 1.0) * 0.5 * (choice_high[j] - choice_low[j])"
    return f"""
        for r in range(rows):
            for j in range({outputs}):
                actions[(low + r) * {outputs} + j] = {value}
"""


def _start(spec: KernelSpec) -> int:
    return int(getattr(spec.action_space, "start", 0))
