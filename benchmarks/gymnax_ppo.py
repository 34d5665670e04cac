"""PPO wholly in JAX, on gymnax's CartPole, for `ppo.py`; runs where JAX is installed.

The networks, losses and hyperparameters are those of docs/tutorials/ppo.py. Prints "ready" once compiled. For each line
on stdin it trains for so many seconds, and prints samples per second and the mean length of the episodes that ended.
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

NUM_ENVS, NUM_STEPS = int(sys.argv[1]), int(sys.argv[2])
GAMMA, GAE_LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
EPOCHS, MINIBATCHES, LEARNING_RATE = 10, 8, 1e-3
env, env_params = gymnax.make("CartPole-v1")


def network(key: Any, outputs: int, last: float) -> Any:
    widths, scales = (4, 64, 64, outputs), (2**0.5, 2**0.5, last)
    make = [jax.nn.initializers.orthogonal(scale) for scale in scales]
    keys = jax.random.split(key, 3)
    return [(make[k](keys[k], (widths[k], widths[k + 1])), jnp.zeros(widths[k + 1])) for k in range(3)]


def forward(layers: Any, x: Any) -> Any:
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ layers[-1][0] + layers[-1][1]


def play(networks: Any, carry: Any, key: Any) -> Any:
    """Step everywhere once."""
    observations, states = carry
    key, drawing = jax.random.split(key)
    logits = jax.nn.log_softmax(forward(networks[0], observations))
    actions = jax.random.categorical(drawing, logits)
    log_probs = jnp.take_along_axis(logits, actions[:, None], 1)[:, 0]
    stepping = jax.random.split(key, NUM_ENVS)
    made = jax.vmap(env.step, in_axes=(0, 0, 0, None))(stepping, states, actions, env_params)
    following, states, rewards, terminated, truncated, *_ = made
    values = forward(networks[1], observations)[:, 0]
    return (following, states), (observations, actions, log_probs, values, rewards, terminated | truncated)


def judge(rewards: Any, values: Any, ended: Any, last: Any) -> Any:
    def back(carry: Any, step: Any) -> Any:
        advantage, following = carry
        reward, value, end = step
        lives = 1.0 - end
        advantage = reward + GAMMA * following * lives - value + GAMMA * GAE_LAMBDA * lives * advantage
        return (advantage, value), advantage

    begin = jnp.zeros(NUM_ENVS), last
    return jax.lax.scan(back, begin, (rewards, values, ended.astype(jnp.float32)), reverse=True)[1]


def loss(networks: Any, batch: Any) -> Any:
    observations, actions, old, advantages, returns = batch
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    logits = jax.nn.log_softmax(forward(networks[0], observations))
    log_probs = jnp.take_along_axis(logits, actions[:, None], 1)[:, 0]
    ratio = jnp.exp(log_probs - old)
    gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages).mean()
    error = jnp.square(forward(networks[1], observations)[:, 0] - returns).mean()
    entropy = -(jnp.exp(logits) * logits).sum(1).mean()
    return 0.5 * error - gain - ENTROPY * entropy


def descend(state: Any, batch: Any) -> Any:
    """Make a step of Adam, gradients shortened to 0.5."""
    networks, first, second, count = state
    gradients = jax.grad(loss)(networks, batch)
    length = jnp.sqrt(sum(jnp.sum(one**2) for one in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda one: one * jnp.minimum(1.0, 0.5 / (length + 1e-6)), gradients)
    count += 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    rate, root = LEARNING_RATE / (1 - 0.9**count), 1 / jnp.sqrt(1 - 0.999**count)
    networks = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) * root + 1e-5), networks, first, second)
    return (networks, first, second, count), None


@jax.jit
def update(carry: Any) -> Any:
    """Play NUM_STEPS everywhere, and learn from them."""
    state, played, key = carry
    key, acting, shuffling = jax.random.split(key, 3)
    step = lambda one, key: play(state[0], one, key)  # noqa: E731
    played, (observations, actions, log_probs, values, rewards, ended) = jax.lax.scan(
        step, played, jax.random.split(acting, NUM_STEPS)
    )
    advantages = judge(rewards, values, ended, forward(state[0][1], played[0])[:, 0])
    batch = observations, actions, log_probs, advantages, advantages + values
    flat = [part.reshape(-1, *part.shape[2:]) for part in batch]

    def epoch(state: Any, key: Any) -> Any:
        order = jax.random.permutation(key, NUM_ENVS * NUM_STEPS).reshape(MINIBATCHES, -1)
        return jax.lax.scan(descend, state, [part[order] for part in flat])

    state, _ = jax.lax.scan(epoch, state, jax.random.split(shuffling, EPOCHS))
    return (state, played, key), ended.sum()


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    networks = [network(keys[0], 2, 0.01), network(keys[1], 1, 1.0)]
    zeros = jax.tree.map(jnp.zeros_like, networks)
    reset = jax.vmap(env.reset, in_axes=(0, None))
    carry: Any = (
        (networks, zeros, zeros, jnp.zeros(())),
        reset(jax.random.split(keys[2], NUM_ENVS), env_params),
        keys[3],
    )
    jax.block_until_ready(update(carry))
    print("ready", flush=True)
    for line in sys.stdin:
        count, num_ended, start_s = 0, 0, time.perf_counter()
        while time.perf_counter() - start_s < float(line):
            carry, ended = update(carry)
            count, num_ended = count + 1, num_ended + int(ended)
        samples = NUM_ENVS * NUM_STEPS * count
        print(samples / (time.perf_counter() - start_s), samples / max(1, num_ended), flush=True)


if __name__ == "__main__":
    main()
