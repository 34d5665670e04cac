"""Evaluation in environments for one: any Gymnasium id, every episode from its own seed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import envfleet
from envfleet.sources import names_kernel
from envfleet.training.evaluation.evaluation import MeanReturn, mean_return
from envfleet.training.games.matches import Table, plan_episodes
from envfleet.training.games.players import Seated
from envfleet.training.games.seating import Policy, Seating


def evaluate_returns(
    policy: Policy,
    env: str | Callable[..., Any],
    *,
    episodes: int = 50,
    seed: int = 0,
    num_envs: int = 64,
    backend: Any = None,
    url: str | Sequence[str] | None = None,
    **env_kwargs: Any,
) -> MeanReturn:
    """Play whole episodes without exploration, the same for any number at once.

    Args:
        policy: Anything with `act_batch`; every agent.
        env: A Gymnasium id, or a callable that makes an environment.
        episodes: How many, from 2.
        seed: All episodes derive theirs from it.
        num_envs: Episodes at once, at most.
        backend: Of the fleet; by default `"kernel"` for kernels and `"serial"` for others.
        url: Of a service that has the environment, instead.
        **env_kwargs: Of the environment.

    Raises:
        InvalidArgument: There is no such environment, or fewer than two episodes.
    """
    make_fleet: Callable[..., Any]
    if url is None:
        backend = backend or ("kernel" if names_kernel(env) else "serial")
        make_fleet = functools.partial(envfleet.make, env, backend=backend)
    else:
        make_fleet = functools.partial(envfleet.connect, url, str(env))
    seating, played = Seating(episodes, num_envs), plan_episodes(episodes, seed)
    with make_fleet(num_envs=seating.num_envs, **env_kwargs) as fleet:
        for _ in Table(fleet, seating, played, [Seated("", policy=policy)], None).play():
            pass
    return mean_return(env if isinstance(env, str) else repr(env), seed, played.returns, played.lengths)
