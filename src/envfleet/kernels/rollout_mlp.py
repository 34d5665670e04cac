"""The source of a network evaluated on blocks of rows.

A block's activations lie as `(width, BLOCK_ROWS)`, so that the innermost loops run over rows, which the compiler
vectorises without reordering any sum; the block's length is fixed, and short blocks are filled up with zeros, so that
every row takes the same path through the vector unit wherever it stands. Hence the same observation gives the same
action for any number of rows and threads, although products and sums may be contracted.
"""

from __future__ import annotations

from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.policies import MLP

BLOCK_ROWS = 64
_UNROLLED = 8

_LAYER = """
@numba.njit(
    cache=True, nogil=True, error_model="numpy", pipeline_class=DistinctArrays, fastmath={{"contract"}}
)
def layer_{index}(inputs, x, y):
    for j in range({outputs}):
        first = {weights} + j * {inputs}
        bias = inputs[{biases} + j]
        for r in range({rows}):
            y[j, r] = bias
{loops}
{activation}
"""

_ACTIVATION = """
    for j in range({outputs}):
        for r in range({rows}):
            y[j, r] = {activation}_(y[j, r])
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
        f"        layer_{k}(inputs, {_half(sizes[k], k)}, {_half(sizes[k + 1], k + 1)})" for k in range(len(sizes) - 1)
    )
    width = sizes[0]
    parts.append(f"""
@compiled
def choose(m, observations, actions, generators, inputs, scratch):
    x = {_half(width, 0)}
    y = {_half(sizes[-1], len(sizes) - 1)}
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


def _half(width: int, layer: int) -> str:
    """The activations after a layer: halves of the scratch memory take turns."""
    start = f"scratch.size // 2 * {layer % 2}"
    return f"scratch[{start} : {start} + {width * BLOCK_ROWS}].reshape(({width}, {BLOCK_ROWS}))"


def _layer(index: int, sizes: tuple[int, ...], place: int, activation: str) -> str:
    inputs, outputs = sizes[index], sizes[index + 1]
    whole = inputs - inputs % _UNROLLED
    loops = []
    if whole:
        loops += [f"        for k in range(0, {whole}, {_UNROLLED}):", *_products("k", _UNROLLED, "            ")]
    if inputs > whole:
        loops += _products(str(whole), inputs - whole, "        ")
    return _LAYER.format(
        index=index,
        outputs=outputs,
        inputs=inputs,
        weights=place,
        biases=place + inputs * outputs,
        rows=BLOCK_ROWS,
        loops="\n".join(loops),
        activation=_ACTIVATION.format(outputs=outputs, rows=BLOCK_ROWS, activation=activation) if activation else "",
    )


def _products(start: str, count: int, indent: str) -> list[str]:
    """Add the products of some inputs to output `j` of every row."""
    lines = [f"w{k} = inputs[first + {start} + {k}]" for k in range(count)]
    lines += [f"for r in range({BLOCK_ROWS}):", "    total = y[j, r]"]
    lines += [f"    total = total + w{k} * x[{start} + {k}, r]" for k in range(count)]
    lines += ["    y[j, r] = total"]
    return [indent + line for line in lines]


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
