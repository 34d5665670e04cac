"""Public functions that return a `Fleet`: `make`, `connect` and `adopt`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gymnasium.vector import AutoresetMode, VectorEnv

from envfleet.choice import build_engine, choose_engine, refuse_meaningless
from envfleet.errors import InvalidArgument
from envfleet.extras import missing
from envfleet.fleet.checks import check_choice, check_seconds, check_whole
from envfleet.fleet.engine import Engine
from envfleet.fleet.fleet import Fleet
from envfleet.options import (
    AutoresetName,
    BackendName,
    DeviceName,
    FailurePolicy,
    ObservationMode,
    Options,
    read_autoreset_mode,
    read_options,
)
from envfleet.registry import BACKENDS
from envfleet.sources import Blueprint, EnvSource, count_envs, name_source, resolve_source

if TYPE_CHECKING:
    from envfleet.transforms import Transform


def make(  # the front door: every option is keyword-only
    env: EnvSource,
    num_envs: int | None = None,
    *,
    backend: BackendName = "auto",
    device: DeviceName = "cpu",
    stream: int | None = None,
    workers: int | None = None,
    envs_per_worker: int | None = None,
    autoreset_mode: AutoresetMode | AutoresetName = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    batch_size: int | None = None,
    on_failure: FailurePolicy = "raise",
    max_restarts: int = 10,
    step_timeout_s: float | None = None,
    start_timeout_s: float = 300.0,
    ray_options: Mapping[str, Any] | None = None,
    seed: int | None = None,
    shared: Mapping[str, Any] | None = None,
    recycle_episodes: int | None = None,
    record_episodes: bool = False,
    final_infos: bool = True,
    observation_mode: ObservationMode = "same",
    transforms: Sequence[Transform] = (),
    debug: bool = False,
    **env_kwargs: Any,
) -> Fleet:
    """Make a fleet: many copies of an environment as one `gymnasium.vector.VectorEnv`.

    Args:
        env: A Gymnasium id or `EnvSpec` (with `**env_kwargs`), a callable that returns an environment, or
            `"module:name"` of one, a callable that takes a seed and returns one, a list of callables, one per
            sub-environment, or a kernel.
        num_envs: Number of sub-environments. Optional for a list, or with `workers` and `envs_per_worker`.
        backend: `"serial"` (in this thread), `"thread"`, `"process"` (worker processes over shared memory), `"ray"`
            (workers placed on a Ray cluster), `"kernel"` (compiled code, for kernels only), `"native"` (a MuJoCo task,
            the compiled twin of an environment, or the vector environment that its package registered), the name of
            a backend that you registered, or `"auto"`: `"kernel"` for a kernel, `"native"` for a MuJoCo task of
            your own; for others it measures which one is fastest here: `"serial"`, `"thread"`, `"process"`, and
            `"native"` for Gymnasium's MuJoCo tasks, unless an option or argument needs the original. `fleet.plan` says
            why. Options that mean nothing with the backend that is named are refused.
        device: Device of `"kernel"`: `"cpu"` or `"cuda"`.
        stream: With `"cuda"`, the handle of the CUDA stream to run on, such as torch's `stream.cuda_stream`; by default
            CUDA's default stream. It must exist as long as the fleet and its arrays.
        workers: Threads, processes or Ray actors; by default one per usable core, or per CPU of the Ray cluster; for
            kernels as many as the first steps or rollouts have shown to be worth it.
        envs_per_worker: Sub-environments of each; they are lost together if their worker dies.
        autoreset_mode: Time of the reset after an episode: Gymnasium's `AutoresetMode` or its name.
        copy: True to return copies; otherwise returned arrays are views, valid until the next-but-one call.
        batch_size: Rows that `recv` waits for; all by default.
        on_failure: `"raise"`, or `"restart"`: a sub-environment that raises, and all of a worker that dies or exceeds
            `step_timeout_s`, end their episodes as truncated with `infos["env_error"]` and are rebuilt; others are not
            affected.
        max_restarts: Maximum number of restarts per hour, of all workers together.
        step_timeout_s: Timeout of one step or reset of a sub-environment in seconds, after which its worker is killed;
            requires `"process"` or `"ray"`.
        start_timeout_s: Timeout for building all sub-environments in seconds; ignored by `"serial"` and `"thread"`,
            which build them in this process.
        ray_options: Options of `"ray"` per worker: `num_cpus`, `num_gpus`, `resources`, `memory`,
            `scheduling_strategy`, `runtime_env`, as for Ray's actors; `shared_memory=False` to use TCP instead of the
            driver's memory; `place_timeout_s` (60 + 3 per worker), `network_timeout_s` (30), `port`.
        seed: Seed of callables that take one (sub-environment `i` gets `seed + i`). Seeds of rebuilt sub-environments
            are derived from it. `None` draws one.
        shared: Large read-only arrays by name, stored once for all workers, and passed to callables as keyword
            arguments of these names.
        recycle_episodes: Replace a worker process after it ended this many episodes, so that leaks do not add up; the
            generator of its sub-environment continues. Needs `envs_per_worker=1`.
        record_episodes: Add the return and length of each episode to `infos["episode"]` on its last step, as
            Gymnasium's `RecordEpisodeStatistics` does.
        final_infos: True to add `final_obs` and `final_info` to infos (`SAME_STEP`); `fleet.final_observations` is
            available in any case.
        observation_mode: `"different"` allows observation spaces of one shape and dtype with different bounds.
        transforms: Transforms of observations, rewards and actions from `envfleet.transforms`, the one next to the
            sub-environments first.
        debug: With `"kernel"` on the CPU, True to check every index: an invalid one raises `KernelIndexError` with the
            line, the index and the size, instead of accessing other memory. Slower.
        **env_kwargs: Arguments of `gymnasium.make`, if `env` is an id or a spec; for a kernel its parameters.

    Returns:
        The fleet. Close it when done, or use it in a `with` statement.

    Raises:
        InvalidArgument: An argument is invalid; the message has its value, what is accepted and what to do.
        KernelError: A kernel cannot be compiled.
        SubEnvError: A sub-environment could not be built.
        WorkerDied: A worker ended while building.
        StartTimeout: Sub-environments were not built within `start_timeout_s`.
        WorkersUnplaced: Ray did not find a place for every worker.

    Examples:
        >>> fleet = make("CartPole-v1", num_envs=2, backend="serial")
        >>> observations, infos = fleet.reset(seed=1)
        >>> observations, rewards, terminated, truncated, infos = fleet.step(fleet.action_space.sample())
        >>> rewards
        array([1., 1.])
        >>> fleet.close()
    """
    arguments = locals()
    names = [field.name for field in dataclasses.fields(Options) if field.name in arguments]
    options = read_options(**{name: arguments[name] for name in names})
    return Fleet(make_engine(env, num_envs, options, env_kwargs), options.batch_size)


def make_engine(env: EnvSource, num_envs: int | None, options: Options, env_kwargs: Mapping[str, Any]) -> Engine:
    """Make the engine of a fleet from options; `make` explains arguments and exceptions."""
    check_choice("backend", options.backend, ("auto", *BACKENDS))
    source = resolve_source(env)
    num_envs = count_envs(source, num_envs, options.workers, options.envs_per_worker, env_kwargs)
    if options.batch_size is not None and options.batch_size > num_envs:
        raise InvalidArgument(f"batch_size={options.batch_size}: pass a whole number from 1 to num_envs={num_envs}")
    if options.transforms and options.device != "cpu":
        raise InvalidArgument(f"transforms require device='cpu' (got {options.device!r}): leave one of them out")
    blueprint = Blueprint(source, num_envs, options, env_kwargs)
    if options.backend == "auto":
        engine = choose_engine(blueprint)
    else:
        refuse_meaningless(options, options.backend)
        engine = build_engine(blueprint, options.backend, "as asked for")
    engine.traits = dataclasses.replace(engine.traits, env_name=name_source(env))
    if not options.transforms:
        return engine
    from envfleet.transforms import TransformedEngine

    try:
        return TransformedEngine(engine, options.transforms)
    except BaseException:
        engine.close(0.0)
        raise


def adopt(
    vector_env: VectorEnv[Any, Any, Any],
    *,
    autoreset_mode: AutoresetMode | AutoresetName | None = None,
    record_episodes: bool = False,
) -> Fleet:
    """Make a fleet of an existing vector environment, which the fleet then owns.

    Args:
        vector_env: Any `gymnasium.vector.VectorEnv`, such as EnvPool's or ale-py's.
        autoreset_mode: `None` for the mode of the vector environment, or `"SAME_STEP"`, which Stable-Baselines3 needs:
            a vector environment that resets in the next step, such as EnvPool's, then has ended rows reset by
            `reset(options={"reset_mask": …})` within the step.
        record_episodes: Add the return and length of each episode to `infos["episode"]` on its last step.

    Returns:
        The fleet. Its `send` and `recv` are those of the vector environment, if it has them and keeps its mode; `recv`
        of EnvPool made with a `batch_size` returns so many. Sub-environments cannot be saved.

    Raises:
        InvalidArgument: It is not a vector environment, its autoreset mode cannot be converted, or its `batch_size` is
            smaller than `num_envs` and its `send` does not take indices.
    """
    from envfleet.adopted import AdoptedEngine
    from envfleet.same_step import in_mode

    if autoreset_mode is not None:
        vector_env = in_mode(vector_env, read_autoreset_mode(autoreset_mode))
    engine = AdoptedEngine(vector_env, record_episodes=record_episodes)
    return Fleet(engine, engine.batch_size)


def connect(
    url: str | Sequence[str],
    env: str | None = None,
    num_envs: int = 1,
    *,
    token: str | None = None,
    autoreset_mode: AutoresetMode | AutoresetName = AutoresetMode.NEXT_STEP,
    mode: Literal["training", "ranked"] = "training",
    batch_size: int | None = None,
    record_episodes: bool = False,
    resume: bool = False,
    fleet_id: str | None = None,
    timeout_s: float = 60.0,
    patience_s: float = 120.0,
    **options: Any,
) -> Fleet:
    """Make a fleet with sub-environments on a service (`envfleet serve`); it is used like any other fleet.

    Args:
        url: URL of the service; several services share the sub-environments evenly and work at the same time.
            `openenv+ws://` or `openenv+wss://` for a server of OpenEnv, one WebSocket per sub-environment; of the
            other arguments it takes `num_envs`, `token`, `autoreset_mode`, `batch_size`, `record_episodes`,
            `timeout_s`, and `observation_space` and `action_space` where its schemas do not determine them.
        env: Id of an environment of the service; the namespace `envfleet/` is optional. Not for OpenEnv.
        num_envs: Number of sub-environments.
        token: Token from the administrator of the service; by default that of the variable `ENVFLEET_TOKEN`, from the
            environment or from the nearest file `.env` in or above the working directory.
        autoreset_mode: Time of the reset after an episode: Gymnasium's `AutoresetMode` or its name.
        mode: `"ranked"`: the fleet is an attempt for the service's scoreboard, which draws the seeds; it counts from
            here on. `Fleet.evaluate` plays it.
        batch_size: Rows that `recv` waits for; all by default.
        record_episodes: Add the return and length of each episode to `infos["episode"]` on its last step.
        resume: Continue the open fleet of this user that was made by the same arguments, such as that of a client that
            was killed; otherwise make a new one. The first `recv` returns the result of the last step, or of the
            last reset with zero rewards.
        fleet_id: Id of the fleet to continue, as `envfleet status` shows it; implies `resume`.
        timeout_s: Timeout of a request in seconds, after which it is sent again. A repeated step is executed once.
        patience_s: Timeout of a call in seconds, including repeated requests; a service may restart meanwhile.
        **options: Arguments of the environment that the service accepts, such as `step_size=10`.

    Returns:
        The fleet. Close it when done, or use it in a `with` statement.

    Raises:
        InvalidArgument: An argument is invalid; the message has its value, what is accepted and what to do.
        ServiceUnreachable: No answer within `patience_s`.
        ServiceRefused: The service does not accept the token, or a quota is used up.
        MissingDependency: `envfleet[client]` is not installed.
    """
    if isinstance(url, str) and url.startswith("openenv+"):
        if env is not None or mode != "training" or resume or fleet_id is not None:
            raise InvalidArgument(f"{url} is a server of OpenEnv: leave out env, mode, resume and fleet_id")
        try:
            from envfleet.remote import openenv
        except ModuleNotFoundError as error:
            raise missing("connect() to OpenEnv", error) from error
        check_seconds("timeout_s", timeout_s)
        num_envs = check_whole("num_envs", num_envs, 1)
        return make(
            openenv.builders(url, num_envs, token=token, timeout_s=timeout_s, **options),
            backend="thread",
            workers=num_envs,
            autoreset_mode=autoreset_mode,
            batch_size=batch_size,
            record_episodes=record_episodes,
        )
    if env is None:
        raise InvalidArgument("env=None: pass the id of an environment of the service")
    try:
        from envfleet.remote.connecting import connect_engine
    except ModuleNotFoundError as error:
        raise missing("connect()", error) from error
    check_choice("mode", mode, ("training", "ranked"))
    check_seconds("timeout_s", timeout_s)
    check_seconds("patience_s", patience_s)
    num_envs = count_envs(env, num_envs, None, None)
    if batch_size is not None:
        batch_size = check_whole("batch_size", batch_size, 1, num_envs, most_name="num_envs")
    engine = connect_engine(
        [url] if isinstance(url, str) else list(url),
        num_envs,
        {"env": env, "mode": mode, "options": options, "autoreset_mode": read_autoreset_mode(autoreset_mode).name},
        resume=fleet_id or resume,
        token=token,
        record_episodes=record_episodes,
        timeout_s=timeout_s,
        patience_s=patience_s,
    )
    return Fleet(engine, batch_size)
