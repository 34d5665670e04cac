"""Rollouts of gymnax's CartPole with a network of 2 × 64, for `rollout.py --gymnax`; runs where JAX is installed.

For each line on stdin it makes rollouts for so many seconds, and prints steps per second.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # before JAX counts the cores

import gymnax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


def main() -> None:
    num_envs, num_steps = int(sys.argv[1]), int(sys.argv[2])
    env, params = gymnax.make("CartPole-v1")
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = (4, 64, 64, 2)
    weights = [
        (jax.random.normal(key, (i, o)) / i**0.5, jnp.zeros(o))
        for key, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]

    def step(carry: Any, _: Any) -> Any:
        key, state, observations = carry
        key, drawing, stepping = jax.random.split(key, 3)
        x = observations
        for w, b in weights[:-1]:
            x = jnp.tanh(x @ w + b)
        logits = x @ weights[-1][0] + weights[-1][1]
        actions = jax.random.categorical(drawing, logits)
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], 1)[:, 0]
        made = jax.vmap(env.step, in_axes=(0, 0, 0, None))(jax.random.split(stepping, num_envs), state, actions, params)
        following, state, rewards, ended, *_ = made
        return (key, state, following), (observations, actions, log_probs, rewards, ended)

    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, num_steps))
    observations, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(keys[0], num_envs), params)
    carry, kept = run((keys[1], state, observations))
    print("ready", flush=True)
    for line in sys.stdin:
        count, start_s = 0, time.perf_counter()
        while time.perf_counter() - start_s < float(line):
            carry, kept = run(carry)
            jax.block_until_ready(kept)
            count += 1
        print(num_envs * num_steps * count / (time.perf_counter() - start_s), flush=True)


if __name__ == "__main__":
    main()
