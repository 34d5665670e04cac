"""NumPy's generator in compiled code: PCG64, SeedSequence and the draws of `np.random.Generator`, bit for bit.

Problem. A kernel must draw the numbers that the same environment in Python draws, on CPU and CUDA.

Solution. Each draw takes the state first, a record of `RNG_DTYPE` or any object with the same attributes, and changes
it. All are scalar Python functions that numba compiles; `fma=False` keeps `uniform` and `normal` exact on CUDA. All
arithmetic is in uint64, because numba turns uint64 mixed with signed integers into float64. Uncompiled, on NumPy
scalars, the functions overflow on purpose: wrap calls in `np.errstate(over="ignore")`.

What remains. `exp` and `log1p` of CUDA may differ from the C library's in the last place; see `standard_normal`.

Sources: M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number
Generation" (HMC-CS-2014-0905), variant XSL-RR 128/64; M. E. O'Neill, "Developing a seed_seq Alternative" (2015);
D. Lemire, "Fast Random Integer Generation in an Interval" (2019). NumPy fixes the details.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from envfleet.errors import InvalidArgument
from envfleet.native.ziggurat import (
    EDGE,
    EXPONENTIAL_EDGE,
    EXPONENTIAL_HEIGHT,
    EXPONENTIAL_INSIDE,
    EXPONENTIAL_WIDTH,
    HEIGHT,
    INSIDE,
    WIDTH,
)

_WORDS = [(name, "u8") for name in ("state_hi", "state_lo", "inc_hi", "inc_lo")]
RNG_DTYPE: Final = np.dtype([*_WORDS, ("uinteger", "u4"), ("has_uint32", "u4")], align=True)
"""State of a PCG64: 128 bits of state, 128 bits of increment, and half a draw kept for the next 32-bit draw."""

_MASK_32 = np.uint64(0xFFFFFFFF)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_1, _2, _3, _4, _8, _9, _11 = (np.uint64(bits) for bits in (1, 2, 3, 4, 8, 9, 11))
_16, _32, _58, _63, _64 = (np.uint64(bits) for bits in (16, 32, 58, 63, 64))

_PCG_HI, _PCG_LO = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_UNIT_53 = 1.0 / 9007199254740992.0

_LAYER_BITS, _SIGN_BIT, _PLACE_BITS = np.uint64(0xFF), np.uint64(0x100), np.uint64((1 << 52) - 1)
_EDGE_INVERSE = 1.0 / EDGE

# SeedSequence multiplies its hash constant for each word; these are all values, in order.
_ENTER = tuple(np.uint64(0x43B0D7E5 * pow(0x931E8875, k, 1 << 32) & 0xFFFFFFFF) for k in range(17))
_LEAVE = tuple(np.uint64(0x8B51F9DD * pow(0x58F38DED, k, 1 << 32) & 0xFFFFFFFF) for k in range(9))
_MIX_LEFT, _MIX_RIGHT = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)


def _hashed(word: np.uint64, first: np.uint64, second: np.uint64) -> np.uint64:
    word = ((word ^ first) * second) & _MASK_32
    return word ^ (word >> _16)


def _mixed(left: np.uint64, right: np.uint64) -> np.uint64:
    word = (_MIX_LEFT * left - _MIX_RIGHT * right) & _MASK_32
    return word ^ (word >> _16)


def seed(rng: Any, value: np.uint64) -> None:
    """Seed a state as `np.random.default_rng(value)` does, and so `gymnasium.utils.seeding.np_random(value)`.

    Args:
        rng: State to fill.
        value: Seed, uint64. One word of entropy equals two words of which the upper is 0: SeedSequence pads with zeros.
    """
    entropy = np.uint64(value)
    a = _hashed(entropy & _MASK_32, _ENTER[0], _ENTER[1])
    b = _hashed(entropy >> _32, _ENTER[1], _ENTER[2])
    c = _hashed(_ZERO, _ENTER[2], _ENTER[3])
    d = _hashed(_ZERO, _ENTER[3], _ENTER[4])
    b = _mixed(b, _hashed(a, _ENTER[4], _ENTER[5]))
    c = _mixed(c, _hashed(a, _ENTER[5], _ENTER[6]))
    d = _mixed(d, _hashed(a, _ENTER[6], _ENTER[7]))
    a = _mixed(a, _hashed(b, _ENTER[7], _ENTER[8]))
    c = _mixed(c, _hashed(b, _ENTER[8], _ENTER[9]))
    d = _mixed(d, _hashed(b, _ENTER[9], _ENTER[10]))
    a = _mixed(a, _hashed(c, _ENTER[10], _ENTER[11]))
    b = _mixed(b, _hashed(c, _ENTER[11], _ENTER[12]))
    d = _mixed(d, _hashed(c, _ENTER[12], _ENTER[13]))
    a = _mixed(a, _hashed(d, _ENTER[13], _ENTER[14]))
    b = _mixed(b, _hashed(d, _ENTER[14], _ENTER[15]))
    c = _mixed(c, _hashed(d, _ENTER[15], _ENTER[16]))
    start_hi = _hashed(a, _LEAVE[0], _LEAVE[1]) | (_hashed(b, _LEAVE[1], _LEAVE[2]) << _32)
    start_lo = _hashed(c, _LEAVE[2], _LEAVE[3]) | (_hashed(d, _LEAVE[3], _LEAVE[4]) << _32)
    stream_hi = _hashed(a, _LEAVE[4], _LEAVE[5]) | (_hashed(b, _LEAVE[5], _LEAVE[6]) << _32)
    stream_lo = _hashed(c, _LEAVE[6], _LEAVE[7]) | (_hashed(d, _LEAVE[7], _LEAVE[8]) << _32)
    rng.inc_hi = (stream_hi << _ONE) | (stream_lo >> _63)
    rng.inc_lo = (stream_lo << _ONE) | _ONE
    # PCG starts at 0, steps (which leaves the increment), adds the start, and steps.
    lo = rng.inc_lo + start_lo
    rng.state_hi = rng.inc_hi + start_hi + (_ONE if lo < start_lo else _ZERO)
    rng.state_lo = lo
    _advance(rng)
    rng.uinteger = np.uint32(0)
    rng.has_uint32 = np.uint32(0)


def _high_product(a: np.uint64, b: np.uint64) -> np.uint64:
    a_lo, a_hi, b_lo, b_hi = a & _MASK_32, a >> _32, b & _MASK_32, b >> _32
    middle = a_hi * b_lo + ((a_lo * b_lo) >> _32)
    return a_hi * b_hi + (middle >> _32) + ((a_lo * b_hi + (middle & _MASK_32)) >> _32)


def _advance(rng: Any) -> None:
    hi, lo = rng.state_hi, rng.state_lo
    new_lo = lo * _PCG_LO + rng.inc_lo
    carry = _ONE if new_lo < rng.inc_lo else _ZERO
    rng.state_hi = _high_product(lo, _PCG_LO) + hi * _PCG_LO + lo * _PCG_HI + rng.inc_hi + carry
    rng.state_lo = new_lo


def next_uint64(rng: Any) -> np.uint64:
    """Draw 64 random bits, as `PCG64.random_raw`."""
    _advance(rng)
    word = rng.state_hi ^ rng.state_lo
    turn = rng.state_hi >> _58
    return (word >> turn) | (word << ((_64 - turn) & _63))  # type: ignore[no-any-return]


def next_uint32(rng: Any) -> np.uint64:
    """Draw 32 random bits, as a uint64; every other call returns the upper half of the draw before."""
    if rng.has_uint32 != 0:
        rng.has_uint32 = np.uint32(0)
        return np.uint64(rng.uinteger)
    word = next_uint64(rng)
    rng.uinteger = np.uint32(word >> _32)
    rng.has_uint32 = np.uint32(1)
    return word & _MASK_32


def random(rng: Any) -> float:
    """Draw a float64 from [0, 1), as `Generator.random()`."""
    return (next_uint64(rng) >> _11) * _UNIT_53


def uniform(rng: Any, low: float = 0.0, high: float = 1.0) -> float:
    """Draw a float64 from [low, high), as `Generator.uniform(low, high)`; the bounds are not checked."""
    return low + (high - low) * random(rng)


def integers(rng: Any, low: int, high: int | None = None, endpoint: bool = False) -> np.int64:
    """Draw an int64 from low to high - 1, or from 0 to low - 1, as `Generator.integers(low, high, endpoint=…)`.

    Args:
        rng: State of the generator.
        low: Lower bound, int64.
        high: Upper bound, int64. If it is not above `low`, which `Generator` rejects, `low` is returned.
        endpoint: True if the upper bound itself may be drawn.
    """
    beyond = 0 if endpoint else 1
    if high is None:
        return _integers(rng, np.int64(0), np.int64(low) - np.int64(beyond))
    return _integers(rng, np.int64(low), np.int64(high) - np.int64(beyond))


def _integers(rng: Any, low: np.int64, last: np.int64) -> np.int64:
    if last <= low:
        return low
    offset = np.uint64(low)
    above = np.uint64(last) - offset
    if above >> _32 == _ZERO:
        return np.int64(offset + _below_32(rng, above + _ONE))
    if above + _ONE == _ZERO:
        return np.int64(offset + next_uint64(rng))
    return np.int64(offset + _below_64(rng, above + _ONE))


def _below_32(rng: Any, span: np.uint64) -> np.uint64:
    product = next_uint32(rng) * span
    if (product & _MASK_32) < span:
        threshold = (_MASK_32 + _ONE - span) % span
        while (product & _MASK_32) < threshold:
            product = next_uint32(rng) * span
    return product >> _32


def _below_64(rng: Any, span: np.uint64) -> np.uint64:
    word = next_uint64(rng)
    if word * span < span:
        threshold = (_ZERO - span) % span
        while word * span < threshold:
            word = next_uint64(rng)
    return _high_product(word, span)


def standard_normal(rng: Any) -> float:
    """Draw a float64 from the standard normal distribution, as `Generator.standard_normal()`.

    One draw in a hundred calls `exp` or `log1p`. If these are not those of NumPy's C library (CUDA), a draw from the
    tail may differ in the last place, and one in about 10**16 may be accepted here and rejected there.
    """
    while True:
        word = next_uint64(rng)
        layer = word & _LAYER_BITS
        place = (word >> _9) & _PLACE_BITS
        value = place * WIDTH[layer]
        if word & _SIGN_BIT != _ZERO:
            value = -value
        if place < INSIDE[layer]:
            return float(value)
        if layer == _ZERO:
            return _tail(rng, (place >> _8) & _ONE != _ZERO)
        outer, inner = HEIGHT[layer], HEIGHT[layer - _ONE]
        if (inner - outer) * random(rng) + outer < math.exp(-0.5 * value * value):
            return float(value)


def _tail(rng: Any, is_negative: bool) -> float:
    while True:
        beyond = -_EDGE_INVERSE * math.log1p(-random(rng))
        height = -math.log1p(-random(rng))
        if height + height > beyond * beyond:
            return -(EDGE + beyond) if is_negative else EDGE + beyond


def normal(rng: Any, loc: float = 0.0, scale: float = 1.0) -> float:
    """Draw a float64 with mean `loc` and standard deviation `scale`, as `Generator.normal(loc, scale)`."""
    return loc + scale * standard_normal(rng)


def standard_exponential(rng: Any) -> float:
    """Draw a float64 from the exponential distribution with mean 1, as `Generator.standard_exponential()`.

    One draw in a hundred calls `exp` or `log1p`; see `standard_normal`.
    """
    while True:
        word = next_uint64(rng) >> _3
        layer, place = word & _LAYER_BITS, word >> _8
        value = place * EXPONENTIAL_WIDTH[layer]
        if place < EXPONENTIAL_INSIDE[layer]:
            return float(value)
        if layer == _ZERO:
            return EXPONENTIAL_EDGE - math.log1p(-random(rng))
        outer, inner = EXPONENTIAL_HEIGHT[layer], EXPONENTIAL_HEIGHT[layer - _ONE]
        if (inner - outer) * random(rng) + outer < math.exp(-value):
            return float(value)


def exponential(rng: Any, scale: float = 1.0) -> float:
    """Draw a float64 from the exponential distribution with mean `scale`, as `Generator.exponential(scale)`."""
    return scale * standard_exponential(rng)


def poisson(rng: Any, lam: float = 1.0) -> np.int64:
    """Draw an int64 from the Poisson distribution with mean `lam`, at least 0, as `Generator.poisson(lam)`.

    Source: W. Hörmann, "The transformed rejection method for generating Poisson random variables" (1993), for means of
    10 and more; below 10, products of uniform draws.
    """
    if lam >= 10.0:
        return _poisson_by_rejection(rng, lam)
    count, least, product = np.int64(0), math.exp(-lam), random(rng) if lam != 0.0 else 0.0
    while product > least:
        count += np.int64(1)
        product *= random(rng)
    return count


def _poisson_by_rejection(rng: Any, lam: float) -> np.int64:
    root, log_lam = math.sqrt(lam), math.log(lam)
    b = 0.931 + 2.53 * root
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    surely = 0.9277 - 3.6224 / (b - 2.0)
    while True:
        u = random(rng) - 0.5
        v = random(rng)
        distance = 0.5 - abs(u)
        if distance == 0.0:  # the count would be minus infinity
            continue
        count = math.floor((2.0 * a / distance + b) * u + lam + 0.43)
        if distance >= 0.07 and v <= surely:
            return np.int64(count)
        if count < 0 or (distance < 0.013 and v > distance):
            continue
        if v == 0.0:
            return np.int64(count)
        height = math.log(v) + math.log(inverse_alpha) - math.log(a / (distance * distance) + b)
        if height <= -lam + count * log_lam - _log_gamma(count + 1.0):
            return np.int64(count)


_STIRLING = (
    *(8.333333333333333e-02, -2.777777777777778e-03, 7.936507936507937e-04, -5.952380952380952e-04),
    *(8.417508417508418e-04, -1.917526917526918e-03, 6.410256410256410e-03, -2.955065359477124e-02),
    *(1.796443723688307e-01, -1.39243221690590e00),
)
_LOG_TAU = 1.8378770664093453e00


def _log_gamma(x: float) -> float:
    if x == 1.0 or x == 2.0:  # noqa: PLR1714  # numba compiles a set slowly
        return 0.0
    steps = int(7.0 - x) if x < 7.0 else 0
    shifted = x + steps
    square = (1.0 / shifted) * (1.0 / shifted)
    series = _STIRLING[9]
    for k in range(8, -1, -1):
        series = series * square + _STIRLING[k]
    value = series / shifted + 0.5 * _LOG_TAU + (shifted - 0.5) * math.log(shifted) - shifted
    for _ in range(steps):
        value -= math.log(shifted - 1.0)
        shifted -= 1.0
    return value


def choice(rng: Any, a: Any, size: None = None, replace: bool = True, p: Any = None) -> Any:
    """Draw an element of an array or tuple, as `Generator.choice(a, p=p)`; the sum of `p` is not checked.

    `size` and `replace` are there for the order of arguments; `choice_many` takes them.
    """
    return a[_choose(rng, len(a), p)]


def choice_below(rng: Any, a: int, size: None = None, replace: bool = True, p: Any = None) -> np.int64:
    """Draw an int64 from 0 to a - 1, as `Generator.choice(a, p=p)`."""
    return _choose(rng, a, p)


def choice_many(rng: Any, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
    """Draw an array of `size` elements, as `Generator.choice(a, size, replace, p)`; on the CPU only.

    Raises:
        ValueError: `size` exceeds the number of elements, without replacement.
    """
    return np.asarray(a)[choice_many_below(rng, len(a), size, replace, p)]


def choice_many_below(rng: Any, a: int, size: Any = None, replace: bool = True, p: Any = None) -> Any:
    """Draw `size` numbers from 0 to a - 1, as `Generator.choice(a, size, replace, p)`; on the CPU only.

    Raises:
        ValueError: `size` exceeds `a`, without replacement.
    """
    if not replace:
        return _choose_distinct(rng, a, size, p)
    places = np.empty(size, np.int64)
    for k in range(size):
        places[k] = _choose(rng, a, p)
    return places


def _choose(rng: Any, a: int, p: Any) -> np.int64:
    if p is None:
        return _integers(rng, np.int64(0), np.int64(a - 1))
    total = 0.0
    for share in p:
        total += share
    drawn, reached = random(rng), 0.0
    for place in range(len(p) - 1):
        reached += p[place]
        if reached / total > drawn:
            return np.int64(place)
    return np.int64(len(p) - 1)


def _choose_distinct(rng: Any, a: int, size: int, p: Any) -> Any:
    if size > a:
        raise ValueError("choice without replacement draws more elements than it has")
    if p is not None:
        return _choose_distinct_by(rng, a, size, p.copy())
    places = np.empty(size, np.int64)
    if a > 10_000 and size > a // 50:
        everything = np.arange(a)
        _shuffle_numbers(rng, everything, max(a - size, 1))
        return everything[a - size :].copy()
    for k in range(size):
        last = np.int64(a - size + k)
        place = _integers(rng, np.int64(0), last)
        places[k] = last if _has(places[:k], place) else place
    _shuffle_numbers(rng, places, 1)
    return places


def _choose_distinct_by(rng: Any, a: int, size: int, shares: Any) -> Any:
    places, count = np.empty(size, np.int64), 0
    while count < size:  # draw as many as are missing, without duplicates
        num_before = count
        for _ in range(size - num_before):
            place = _choose(rng, a, shares)
            if not _has(places[num_before:count], place):
                places[count] = place
                count += 1
        for k in range(num_before, count):
            shares[places[k]] = 0.0
    return places


def _has(places: Any, place: np.int64) -> bool:
    for each in places:  # noqa: SIM110  # compiled code lacks any()
        if each == place:
            return True
    return False


def _shuffle_numbers(rng: Any, places: Any, first: int) -> None:
    for k in range(len(places) - 1, first - 1, -1):
        other = _integers(rng, np.int64(0), np.int64(k))
        places[k], places[other] = places[other], places[k]


def _up_to(rng: Any, last: np.uint64) -> np.int64:
    mask = last  # becomes all bits up to its highest
    for shift in (_1, _2, _4, _8, _16):
        mask |= mask >> shift
    word = next_uint32(rng) & mask
    while word > last:
        word = next_uint32(rng) & mask
    return np.int64(word)


def shuffle(rng: Any, x: Any) -> None:
    """Shuffle an array along its first axis, as `Generator.shuffle(x)`."""
    flat, row_size = x.flat, x.size // max(len(x), 1)
    for last in range(len(x) - 1, 0, -1):
        other = _up_to(rng, np.uint64(last))
        for k in range(row_size):
            here, there = last * row_size + k, other * row_size + k
            flat[here], flat[there] = flat[there], flat[here]


def permutation(rng: Any, x: Any) -> Any:
    """Return a shuffled copy of an array, as `Generator.permutation(x)`; on the CPU only."""
    shuffled = x.copy()
    shuffle(rng, shuffled)
    return shuffled


def permutation_below(rng: Any, x: int) -> Any:
    """Return the numbers below `x`, shuffled, as `Generator.permutation(x)`; on the CPU only."""
    shuffled = np.arange(x)
    shuffle(rng, shuffled)
    return shuffled


_OF_FLOATS = (random, uniform, standard_normal, normal, standard_exponential, exponential)
_DRAWS = (*_OF_FLOATS, integers, poisson, choice, shuffle, permutation)
METHODS: Final[dict[str, Callable[..., Any]]] = {draw.__name__: draw for draw in _DRAWS}
"""Methods of a kernel's `rng`, by their name in `np.random.Generator`."""

_VARIANTS: Final[dict[tuple[str, bool, bool], Callable[..., Any]]] = {
    ("choice", True, False): choice_below,
    ("choice", False, True): choice_many,
    ("choice", True, True): choice_many_below,
    ("permutation", True, False): permutation_below,
}


def find_method(name: str, *, is_int: bool = False, is_many: bool = False) -> Callable[..., Any]:
    """Return the function that draws, by its name in `METHODS`.

    Args:
        name: Name of the method.
        is_int: True if the first argument is an int.
        is_many: True if `choice` has a `size`.
    """
    return _VARIANTS.get((name, is_int, is_many), METHODS[name])


def from_generator(generator: np.random.Generator) -> np.record:
    """Return the state of a generator over PCG64, such as Gymnasium's `np_random`, as a record of `RNG_DTYPE`.

    Raises:
        InvalidArgument: The generator uses another bit generator.
    """
    bits = generator.bit_generator
    if type(bits) is not np.random.PCG64:
        raise InvalidArgument(
            f"the generator uses {type(bits).__name__}, expected PCG64: "
            "create it by np.random.default_rng(seed) or gymnasium.utils.seeding.np_random(seed)"
        )
    state: dict[str, Any] = dict(bits.state)
    words = (*divmod(state["state"]["state"], 1 << 64), *divmod(state["state"]["inc"], 1 << 64))
    record: np.record = np.rec.array([(*words, state["uinteger"], state["has_uint32"])], RNG_DTYPE)[0]
    return record


def to_generator(record: np.void) -> np.random.Generator:
    """Return a generator that continues from a record of `RNG_DTYPE`."""
    generator = np.random.Generator(np.random.PCG64(0))
    read_into(generator, record)
    return generator


def read_into(generator: np.random.Generator, record: np.void) -> None:
    """Set the state of a generator over PCG64 to a record of `RNG_DTYPE`."""
    state_hi, state_lo, inc_hi, inc_lo, uinteger, has_uint32 = record.item()
    words: Any = {"state": state_hi << 64 | state_lo, "inc": inc_hi << 64 | inc_lo}
    state = {"bit_generator": "PCG64", "state": words, "has_uint32": has_uint32, "uinteger": uinteger}
    generator.bit_generator.state = state
