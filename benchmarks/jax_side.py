"""Programs in JAX that take turns with envfleet: games of gymnax and pgx, rollouts of a network, PPO.

Runs in an interpreter that has JAX, started by `benchmarks.worker.Worker`: each question is a number of seconds, each
answer what was measured in them.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks.worker import serve

if __name__ == "__main__" and sys.argv[1] != "game":  # one core; before JAX counts them
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of a GPU's memory

import jax
import jax.numpy as jnp

GAMMA, GAE_LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
EPOCHS, MINIBATCHES, LEARNING_RATE = 10, 8, 1e-3


def serve_game(package: str, name: str, size: str) -> None:
    """Step a game with random actions; ended games are reset in the same step. Answers with transitions per second."""
    num_envs = int(size)
    begin, step, num_actions = (_gymnax if package == "gymnax" else _pgx)(name)
    keys = jax.random.split(jax.random.key(0), num_envs)
    states = jax.jit(jax.vmap(begin))(keys)
    batches = list(jax.random.randint(jax.random.key(1), (16, num_envs), 0, num_actions))

    @jax.jit
    def advance(keys: Any, states: Any, actions: Any) -> Any:
        pairs = jax.vmap(jax.random.split)(keys)
        states, results = jax.vmap(step)(pairs[:, 1], states, actions)
        return pairs[:, 0], states, results

    carry = keys, states
    for actions in batches:
        *carry, results = advance(*carry, actions)
    jax.block_until_ready(results)

    def answer(seconds: float) -> float:
        nonlocal carry
        count, start_s = 0, time.perf_counter()
        while time.perf_counter() - start_s < seconds:
            *carry, results = advance(*carry, batches[count % 16])
            jax.block_until_ready(results)
            count += 1
        return num_envs * count / (time.perf_counter() - start_s)

    serve(answer)


def _gymnax(name: str) -> Any:
    import gymnax

    env, params = gymnax.make(name)

    def step(key: Any, state: Any, action: Any) -> Any:
        observation, state, *results = env.step(key, state, action, params)
        return state, (observation, *results)

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


def _cartpole(num_envs: int) -> tuple[Any, Any]:
    """Return vectorized `reset(key)` and `step(key, states, actions)` of gymnax's CartPole."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    reset, step = jax.vmap(env.reset, in_axes=(0, None)), jax.vmap(env.step, in_axes=(0, 0, 0, None))
    return (
        lambda key: reset(jax.random.split(key, num_envs), params),
        lambda key, states, actions: step(jax.random.split(key, num_envs), states, actions, params),
    )


def _network(key: Any, outputs: int, last: float) -> Any:
    widths, scales = (4, 64, 64, outputs), (2**0.5, 2**0.5, last)
    make = [jax.nn.initializers.orthogonal(scale) for scale in scales]
    keys = jax.random.split(key, 3)
    return [(make[k](keys[k], (widths[k], widths[k + 1])), jnp.zeros(widths[k + 1])) for k in range(3)]


def _forward(layers: Any, x: Any) -> Any:
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ layers[-1][0] + layers[-1][1]


def _draw(layers: Any, key: Any, observations: Any) -> tuple[Any, Any]:
    """Draw actions; return them and their log-probabilities."""
    logits = jax.nn.log_softmax(_forward(layers, observations))
    actions = jax.random.categorical(key, logits)
    return actions, jnp.take_along_axis(logits, actions[:, None], 1)[:, 0]


def serve_rollout(size: str, steps: str) -> None:
    """Make rollouts of CartPole with a network of 2 × 64; answers with transitions per second."""
    num_envs, num_steps = int(size), int(steps)
    reset, advance = _cartpole(num_envs)
    keys = jax.random.split(jax.random.key(0), 3)
    layers = _network(keys[2], 2, 1.0)

    def step(carry: Any, _: Any) -> Any:
        key, states, observations = carry
        key, drawing, stepping = jax.random.split(key, 3)
        actions, log_probs = _draw(layers, drawing, observations)
        following, states, rewards, ended, *_ = advance(stepping, states, actions)
        return (key, states, following), (observations, actions, log_probs, rewards, ended)

    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, num_steps))
    observations, states = reset(keys[0])
    carry, _ = run((keys[1], states, observations))

    def answer(seconds: float) -> float:
        nonlocal carry
        count, start_s = 0, time.perf_counter()
        while time.perf_counter() - start_s < seconds:
            carry, kept = run(carry)
            jax.block_until_ready(kept)
            count += 1
        return num_envs * num_steps * count / (time.perf_counter() - start_s)

    serve(answer)


def _advantages(rewards: Any, values: Any, ended: Any, last: Any) -> Any:
    def back(carry: Any, step: Any) -> Any:
        advantage, following = carry
        reward, value, end = step
        advantage = reward + GAMMA * following * (1 - end) - value + GAMMA * GAE_LAMBDA * (1 - end) * advantage
        return (advantage, value), advantage

    begin = jnp.zeros_like(last), last
    return jax.lax.scan(back, begin, (rewards, values, ended.astype(jnp.float32)), reverse=True)[1]


def _loss(networks: Any, batch: Any) -> Any:
    observations, actions, old, advantages, returns = batch
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    logits = jax.nn.log_softmax(_forward(networks[0], observations))
    ratio = jnp.exp(jnp.take_along_axis(logits, actions[:, None], 1)[:, 0] - old)
    gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages).mean()
    error = jnp.square(_forward(networks[1], observations)[:, 0] - returns).mean()
    return 0.5 * error - gain + ENTROPY * (jnp.exp(logits) * logits).sum(1).mean()


def _adam(state: Any, batch: Any) -> Any:
    """Make a step of Adam, with gradients clipped to a norm of 0.5."""
    networks, first, second, count = state
    gradients = jax.grad(_loss)(networks, batch)
    norm = jnp.sqrt(sum(jnp.sum(one**2) for one in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda one: one * jnp.minimum(1.0, 0.5 / (norm + 1e-6)), gradients)
    count += 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    rate, root = LEARNING_RATE / (1 - 0.9**count), 1 / jnp.sqrt(1 - 0.999**count)
    networks = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) * root + 1e-5), networks, first, second)
    return (networks, first, second, count), None


def serve_ppo(size: str, steps: str) -> None:
    """Train PPO with the hyperparameters of docs/tutorials/ppo.py; answers with samples per second, episode length."""
    num_envs, num_steps = int(size), int(steps)
    reset, advance = _cartpole(num_envs)

    def step(networks: Any, carry: Any, key: Any) -> Any:
        observations, states = carry
        drawing, stepping = jax.random.split(key)
        actions, log_probs = _draw(networks[0], drawing, observations)
        following, states, rewards, terminated, truncated, *_ = advance(stepping, states, actions)
        values = _forward(networks[1], observations)[:, 0]
        return (following, states), (observations, actions, log_probs, values, rewards, terminated | truncated)

    @jax.jit
    def update(carry: Any) -> Any:
        state, games, key = carry
        key, acting, shuffling = jax.random.split(key, 3)
        games, (observations, actions, log_probs, values, rewards, ended) = jax.lax.scan(
            lambda one, key: step(state[0], one, key), games, jax.random.split(acting, num_steps)
        )
        advantages = _advantages(rewards, values, ended, _forward(state[0][1], games[0])[:, 0])
        batch = observations, actions, log_probs, advantages, advantages + values
        flat = [part.reshape(-1, *part.shape[2:]) for part in batch]

        def epoch(state: Any, key: Any) -> Any:
            order = jax.random.permutation(key, num_envs * num_steps).reshape(MINIBATCHES, -1)
            return jax.lax.scan(_adam, state, [part[order] for part in flat])

        state, _ = jax.lax.scan(epoch, state, jax.random.split(shuffling, EPOCHS))
        return (state, games, key), ended.sum()

    keys = jax.random.split(jax.random.key(0), 4)
    networks = [_network(keys[0], 2, 0.01), _network(keys[1], 1, 1.0)]
    zeros = jax.tree.map(jnp.zeros_like, networks)
    carry: Any = ((networks, zeros, zeros, jnp.zeros(())), reset(keys[2]), keys[3])
    jax.block_until_ready(update(carry))

    def answer(seconds: float) -> tuple[float, float]:
        nonlocal carry
        count, num_ended, start_s = 0, 0, time.perf_counter()
        while time.perf_counter() - start_s < seconds:
            carry, ended = update(carry)
            count, num_ended = count + 1, num_ended + int(ended)
        samples = num_envs * num_steps * count
        return samples / (time.perf_counter() - start_s), samples / max(1, num_ended)

    serve(answer)


if __name__ == "__main__":
    {"game": serve_game, "rollout": serve_rollout, "ppo": serve_ppo}[sys.argv[1]](*sys.argv[2:])
