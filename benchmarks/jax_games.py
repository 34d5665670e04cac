"""Games of gymnax and pgx, for `games.py --jax`; runs where JAX is installed.

Prints "ready" once the game is compiled. Then for each line on stdin it steps for so many seconds with random actions,
and prints transitions per second. An ended game begins anew in the same step.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import jax

_RING = 16


def main() -> None:
    package, name, num_envs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    begin, step, num_actions = (_gymnax if package == "gymnax" else _pgx)(name)
    keys = jax.random.split(jax.random.key(0), num_envs)
    states = jax.jit(jax.vmap(begin))(keys)
    ring = list(jax.random.randint(jax.random.key(1), (_RING, num_envs), 0, num_actions))

    def advance(keys: Any, states: Any, actions: Any) -> Any:
        pairs = jax.vmap(jax.random.split)(keys)
        states, told = jax.vmap(step)(pairs[:, 1], states, actions)
        return pairs[:, 0], states, told

    run = jax.jit(advance)
    for actions in ring:
        keys, states, told = run(keys, states, actions)
    jax.block_until_ready(told)
    print("ready", flush=True)
    for line in sys.stdin:
        count, start_s = 0, time.perf_counter()
        while time.perf_counter() - start_s < float(line):
            keys, states, told = run(keys, states, ring[count % _RING])
            jax.block_until_ready(told)
            count += 1
        print(num_envs * count / (time.perf_counter() - start_s), flush=True)


def _gymnax(name: str) -> Any:
    import gymnax

    env, params = gymnax.make(name)

    def step(key: Any, state: Any, action: Any) -> Any:
        observation, state, *told = env.step(key, state, action, params)
        return state, (observation, *told)

    return lambda key: env.reset(key, params)[1], step, env.num_actions


def _pgx(name: str) -> Any:
    import pgx
    from pgx.experimental import auto_reset

    env = pgx.make(name)
    advance = auto_reset(env.step, env.init)

    def step(key: Any, state: Any, action: Any) -> Any:
        state = advance(state, action, key)
        return state, (state.observation, state.rewards, state.terminated, state.legal_action_mask)

    return env.init, step, env.num_actions


if __name__ == "__main__":
    main()
