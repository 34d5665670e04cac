"""The front doors: `make` turns an environment into a fleet, `connect` finds one behind a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from envfleet.core.arguments import check_choice, check_seconds, check_whole
from envfleet.core.fleet import Fleet
from envfleet.errors import MissingDependency
from envfleet.making.fleets import make_fleet
from envfleet.making.options import Options, read_autoreset_mode
from envfleet.making.registered import find_callable
from envfleet.making.sources import EnvSource, count_envs

if TYPE_CHECKING:
    from envfleet.kernels.fleet import KernelFleet
    from envfleet.kernels.kernel import Kernel
    from envfleet.remote.fleet import RemoteFleet

Backend = Literal["auto", "serial", "thread", "process", "ray"]


@overload
def make(
    env: str | EnvSpec | type[Kernel],
    num_envs: int | None = None,
    *,
    backend: Literal["kernel"],
    device: Literal["cpu", "cuda"] = "cpu",
    debug: bool = False,
    workers: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    seed: int | None = None,
    **env_kwargs: Any,
) -> KernelFleet: ...


@overload
def make(
    env: EnvSource,
    num_envs: int | None = None,
    *,
    backend: Backend = "auto",
    workers: int | None = None,
    envs_per_worker: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    batch_size: int | None = None,
    on_failure: Literal["raise", "restart"] = "raise",
    max_restarts: int = 10,
    step_timeout_s: float | None = None,
    start_timeout_s: float = 300.0,
    start_method: Literal["forkserver", "spawn", "fork"] | None = None,
    ray_options: Mapping[str, Any] | None = None,
    seed: int | None = None,
    shared: Mapping[str, Any] | None = None,
    recycle_episodes: int | None = None,
    recycle_bytes: int | None = None,
    spares: bool = False,
    record_episodes: bool = True,
    observation_mode: Literal["same", "different"] = "same",
    **env_kwargs: Any,
) -> Fleet: ...


def make(
    env: EnvSource,
    num_envs: int | None = None,
    *,
    backend: Backend | Literal["kernel"] = "auto",
    device: Literal["cpu", "cuda"] = "cpu",
    debug: bool = False,
    workers: int | None = None,
    envs_per_worker: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    batch_size: int | None = None,
    on_failure: Literal["raise", "restart"] = "raise",
    max_restarts: int = 10,
    step_timeout_s: float | None = None,
    start_timeout_s: float = 300.0,
    start_method: Literal["forkserver", "spawn", "fork"] | None = None,
    ray_options: Mapping[str, Any] | None = None,
    seed: int | None = None,
    shared: Mapping[str, Any] | None = None,
    recycle_episodes: int | None = None,
    recycle_bytes: int | None = None,
    spares: bool = False,
    record_episodes: bool = True,
    observation_mode: Literal["same", "different"] = "same",
    **env_kwargs: Any,
) -> Fleet | KernelFleet:
    """Make a fleet: many copies of an environment as one `gymnasium.vector.VectorEnv`.

    Args:
        env: A Gymnasium id or `EnvSpec` (with `**env_kwargs`), a callable that returns an environment, or
            `"module:name"` of one, a callable that takes a seed and returns one, a list of callables, one per
            sub-environment, or a kernel.
        num_envs: How many; may be left out for a list, or if `workers` and `envs_per_worker` are given.
        backend: `"serial"` (in this thread), `"thread"`, `"process"` (worker processes over shared memory), `"ray"`
            (workers placed on a Ray cluster), `"kernel"` (compiled code, for kernels only: returns a `KernelFleet`), or
            `"auto"`: `"kernel"` for a kernel, unless an option asks for more than it has; for others it measures
            whether `"serial"` or `"process"` is faster here, and builds that one anew. `fleet.plan` says why.
        device: Where `"kernel"` runs: `"cpu"` or `"cuda"`. Besides it and `debug`, that backend takes `workers`,
            `autoreset_mode`, `copy`, `seed` and `env_kwargs`. Options that mean nothing with the backend that is named
            are refused.
        debug: With a kernel, compile code that checks every index: one outside its array raises `KernelIndexError`,
            which names the line, the index and the size, where code without checks reads and writes other memory.
            Slower; on the CPU only.
        workers: Threads, processes or Ray actors; by default one per usable core, or per CPU of the Ray cluster.
        envs_per_worker: Sub-environments of each.
        autoreset_mode: When sub-environments are reset after an episode: Gymnasium's `AutoresetMode` or its name.
        copy: Whether returned arrays are the caller's own. If not, they are views, valid until the next-but-one call.
        batch_size: Rows that `recv` waits for; all by default.
        on_failure: `"raise"`, or `"restart"`: a sub-environment that raises, dies or hangs ends its episode as
            truncated with `infos["env_error"]` and is rebuilt; the others do not notice.
        max_restarts: Restarts allowed within any hour.
        step_timeout_s: Seconds a sub-environment may take for one step or reset; `None` for as long as it takes.
        start_timeout_s: Seconds in which all sub-environments must be built; with `"serial"` not limited, because that
            builds them in the caller's own thread, which Ctrl-C interrupts.
        start_method: How worker processes start: `"forkserver"` (default on Linux), `"spawn"` (default elsewhere) or
            `"fork"` (fast, but unsafe once there are threads or CUDA). None of them imports the main module again.
        ray_options: With `"ray"`, what each worker asks for: `num_cpus`, `num_gpus`, `resources`, `memory`,
            `placement_group`, `scheduling_strategy`, `runtime_env`, as Ray has them; `max_restarts` of one worker;
            `shared_memory=False` to have no worker use the driver's memory; `place_timeout_s` (60).
        seed: Given to callables that take one (sub-environment `i` gets `seed + i`). The seeds of sub-environments that
            are restarted or recycled, and of spares, derive from it. `None` draws one.
        shared: Large read-only arrays by name, in memory once for all workers. Callables get those that they name among
            their keyword arguments.
        recycle_episodes: Replace a worker process after it ended this many episodes, so that leaks do not add up.
        recycle_bytes: Replace a worker process once it holds more memory than this.
        spares: Keep a second copy of every sub-environment, reset in the background and seeded from `seed`, for
            environments whose reset is slow.
        record_episodes: Whether `infos["episode"]` tells return and length of each episode on the step it ends; with a
            kernel it does anyway.
        observation_mode: `"different"` allows observation spaces of one shape and dtype with different bounds.
        **env_kwargs: For `gymnasium.make`, if `env` is an id or a spec; of a kernel, its parameters.

    Returns:
        The fleet. Close it when done, or use it in a `with` statement.

    Raises:
        InvalidArgument: An argument cannot be used; says what was given, what was expected and what to do.
        KernelError: A kernel cannot be compiled.
        SubEnvError: A sub-environment could not be built.
        WorkerDied: A worker ended while building.
        StartTimeout: Not all were built within `start_timeout_s`.
        WorkersUnplaced: Ray did not find a place for every worker.

    Examples:
        >>> fleet = make("CartPole-v1", num_envs=2, backend="serial")
        >>> observations, infos = fleet.reset(seed=1)
        >>> observations, rewards, terminated, truncated, infos = fleet.step(fleet.action_space.sample())
        >>> rewards
        array([1., 1.])
        >>> fleet.close()
    """
    if isinstance(env, str):
        env = find_callable(env) or env
    options = Options(
        backend=backend,
        device=device,
        debug=debug,
        workers=workers,
        envs_per_worker=envs_per_worker,
        autoreset_mode=autoreset_mode,
        copy=copy,
        batch_size=batch_size,
        on_failure=on_failure,
        max_restarts=max_restarts,
        step_timeout_s=step_timeout_s,
        start_timeout_s=start_timeout_s,
        start_method=start_method,
        ray_options=ray_options,
        seed=seed,
        shared=shared,
        recycle_episodes=recycle_episodes,
        recycle_bytes=recycle_bytes,
        spares=spares,
        record_episodes=record_episodes,
        observation_mode=observation_mode,
    ).checked()
    num_envs = count_envs(env, num_envs, options.workers, options.envs_per_worker)
    return make_fleet(env, num_envs, options, env_kwargs)


def connect(
    url: str | Sequence[str],
    env: str,
    num_envs: int = 1,
    *,
    token: str | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    mode: Literal["training", "ranked"] = "training",
    batch_size: int | None = None,
    timeout_s: float = 60.0,
    patience_s: float = 120.0,
    **options: Any,
) -> RemoteFleet:
    """Make a fleet that lives behind a service (`envfleet serve`), and is used as one that lives here.

    Args:
        url: Of the service; several spread the sub-environments evenly, and are asked at the same time.
        env: An environment that the service offers; the namespace `envfleet/` may be left out.
        num_envs: How many sub-environments.
        token: From whoever runs the service; by default that of the variable `ENVFLEET_TOKEN`, from the environment or
            from the nearest file `.env` above the working directory.
        autoreset_mode: When sub-environments are reset after an episode: Gymnasium's `AutoresetMode` or its name.
        mode: `"ranked"`: episodes count on the service's leaderboard, and it draws the seeds.
        batch_size: Rows that `recv` waits for; all by default.
        timeout_s: Seconds to wait for an answer before a request is sent again. A repeated step is never made twice.
        patience_s: Seconds after which a call that was not answered raises. A service may be restarted meanwhile.
        **options: Arguments of the environment that the service allows, such as `step_size=10`.

    Returns:
        The fleet. Close it when done, or use it in a `with` statement.

    Raises:
        InvalidArgument: An argument cannot be used; says what was given, what was expected and what to do.
        ServiceUnreachable: Nobody was reached within 10 seconds, or nobody answered within `patience_s`.
        ServiceRefused: The service does not accept the token, or a quota is used up.
        MissingDependency: `envfleet[client]` is not installed.
    """
    try:
        from envfleet.remote.connecting import connect_fleet
    except ModuleNotFoundError as error:
        raise MissingDependency(f"connect() needs {error.name}: pip install 'envfleet[client]'") from error
    check_choice("mode", mode, ("training", "ranked"))
    check_seconds("timeout_s", timeout_s)
    check_seconds("patience_s", patience_s)
    num_envs = count_envs(env, num_envs, None, None)
    if batch_size is not None:
        batch_size = check_whole("batch_size", batch_size, 1, num_envs, most_name="num_envs")
    return connect_fleet(
        [url] if isinstance(url, str) else list(url),
        num_envs,
        {"env": env, "mode": mode, "options": options},
        token=token,
        autoreset_mode=read_autoreset_mode(autoreset_mode),
        batch_size=batch_size,
        timeout_s=timeout_s,
        patience_s=patience_s,
    )
