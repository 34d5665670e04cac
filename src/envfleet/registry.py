"""Registry of backends, environments with their hosting, two-player games, and agents.

Entries are plain values; heavy parts are named as `"module:name"` and imported when they are used.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import Any

from envfleet.errors import InvalidArgument


@dataclasses.dataclass(frozen=True)
class Backend:
    """Entry of a backend.

    Attributes:
        name: Value of `make(backend=…)`.
        build: `"module:function"`, called with a `Blueprint` and the reason for the choice; returns an engine.
        steps: Place where a sub-environment steps, for tables and messages.
        choose_when: Condition for choosing it, for tables.
        options: Options of `make` that it supports, in addition to `COMMON`.
    """

    name: str
    build: str
    steps: str
    choose_when: str
    options: frozenset[str]


COMMON = frozenset({"backend", "autoreset_mode", "copy", "seed", "record_episodes", "final_infos", "transforms"})
"""Options that every backend supports."""

_PYTHON = frozenset(
    {"batch_size", "on_failure", "max_restarts", "start_timeout_s", "shared", "observation_mode", "lenient"}
)
_SPREAD = frozenset({"workers", "envs_per_worker"})

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            "serial",
            "envfleet.backends:build_serial",
            "in this process, one after another",
            "a step costs less than waking a worker, or you debug",
            _PYTHON,
        ),
        Backend(
            "thread",
            "envfleet.backends:build_thread",
            "in threads of this process",
            "the environment releases the GIL",
            _PYTHON | _SPREAD,
        ),
        Backend(
            "process",
            "envfleet.backends:build_process",
            "in worker processes, many to a worker, over shared memory",
            "a step costs more than waking a worker",
            _PYTHON | _SPREAD | {"step_timeout_s", "recycle_episodes"},
        ),
        Backend(
            "ray",
            "envfleet.backends:build_ray",
            "in workers that a Ray cluster places, on this machine and others",
            "one machine is not enough",
            _PYTHON | _SPREAD | {"step_timeout_s", "ray_options"},
        ),
        Backend(
            "kernel",
            "envfleet.backends:build_kernel",
            "in code compiled from a few lines of Python, on CPU or GPU",
            "it is one of the kernels, or you write it as one",
            frozenset({"device", "stream", "workers", "debug"}),
        ),
        Backend(
            "native",
            "envfleet.natives:build_native",
            "in compiled code: MuJoCo's thread pool, a kernel, or a package's own vector environment",
            "it is a MuJoCo task of Gymnasium or your own, or has another native twin",
            frozenset({"device", "stream", "workers", "debug", "on_failure"}),
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class Environment:
    """Entry of a built-in environment.

    Attributes:
        id: Gymnasium's id.
        target: `"module:Name"` of the class.
        max_episode_steps: Time limit, or `None`.
        is_kernel: True for a kernel.
        twin_of: Id of the Gymnasium environment that it equals.
        hosting: `"module:Name"` of its subclass of `Hosting`, for services.
    """

    id: str
    target: str
    max_episode_steps: int | None = None
    is_kernel: bool = True
    twin_of: str | None = None
    hosting: str = "envfleet.envs.hosting:Hosting"


_TWINS = {
    "CartPole-v1": ("classic.cartpole:CartPole", 500),
    "Pendulum-v1": ("classic.pendulum:Pendulum", 200),
    "MountainCar-v0": ("classic.mountain_car:MountainCar", 200),
    "MountainCarContinuous-v0": ("classic.mountain_car_continuous:MountainCarContinuous", 999),
    "Acrobot-v1": ("classic.acrobot:Acrobot", 500),
    "FrozenLake-v1": ("toy_text.frozen_lake:FrozenLake", 100),
    "FrozenLake8x8-v1": ("toy_text.frozen_lake:FrozenLake8x8", 200),
    "Taxi-v3": ("toy_text.taxi:Taxi", 200),
    "Taxi-v4": ("toy_text.taxi_v4:TaxiV4", 200),
    "CliffWalking-v1": ("toy_text.cliff_walking:CliffWalking", None),
    "Blackjack-v1": ("toy_text.blackjack:Blackjack", None),
}
# As in the package minatar: v0 has all six actions, v1 those that do something in the game.
_MINATAR = {
    "Asterix": ("asterix:Asterix", "minimal:AsterixMinimal"),
    "Breakout": ("breakout:Breakout", "minimal:BreakoutMinimal"),
    "Freeway": ("freeway:Freeway", "minimal:FreewayMinimal"),
    "Seaquest": ("seaquest:Seaquest", "seaquest:Seaquest"),
    "SpaceInvaders": ("space_invaders:SpaceInvaders", "minimal:SpaceInvadersMinimal"),
}
_MINIGRID = {
    "Empty-5x5": "empty:Empty5x5",
    "Empty-Random-5x5": "empty:EmptyRandom5x5",
    "Empty-6x6": "empty:Empty6x6",
    "Empty-Random-6x6": "empty:EmptyRandom6x6",
    "Empty-8x8": "empty:Empty",
    "Empty-16x16": "empty:Empty16x16",
    "DoorKey-5x5": "door_key:DoorKey5x5",
    "DoorKey-6x6": "door_key:DoorKey6x6",
    "DoorKey-8x8": "door_key:DoorKey",
    "DoorKey-16x16": "door_key:DoorKey16x16",
    "FourRooms": "four_rooms:FourRooms",
    "LavaCrossingS9N1": "lava_crossing:LavaCrossing",
    "LavaCrossingS9N2": "lava_crossing:LavaCrossingS9N2",
    "LavaCrossingS9N3": "lava_crossing:LavaCrossingS9N3",
    "LavaCrossingS11N5": "lava_crossing:LavaCrossingS11N5",
    "MultiRoom-N2-S4": "multi_room:MultiRoomN2S4",
    "MultiRoom-N4-S5": "multi_room:MultiRoomN4S5",
    "MultiRoom-N6": "multi_room:MultiRoom",
}
_HOCKEY = "envfleet.envs.hockey"

ENVIRONMENTS: dict[str, Environment] = {
    environment.id: environment
    for environment in (
        *(
            Environment(f"envfleet/{name}", f"envfleet.envs.{target}", limit, twin_of=name)
            for name, (target, limit) in _TWINS.items()
        ),
        *(
            Environment(f"envfleet/MinAtar-{name}-v{version}", f"envfleet.envs.minatar.{target}")
            for name, targets in _MINATAR.items()
            for version, target in enumerate(targets)
        ),
        *(
            Environment(f"envfleet/MiniGrid-{name}-v0", f"envfleet.envs.minigrid.{target}")
            for name, target in _MINIGRID.items()
        ),
        Environment("envfleet/GridWorld-v0", "envfleet.envs.gridworld:GridWorld", 100),
        Environment("envfleet/GridWorldPixels-v0", "envfleet.envs.gridworld:GridWorldPixels", 100),
        Environment("envfleet/ConnectFour-v0", "envfleet.envs.board:ConnectFour"),
        Environment("envfleet/ConnectFourOne-v0", "envfleet.envs.board:ConnectFourOne"),
        Environment("envfleet/2048-v0", "envfleet.envs.board:Play2048"),
        Environment("envfleet/MaskedConnectFourOne-v0", "envfleet.envs.board:MaskedConnectFourOne"),
        Environment("envfleet/Masked2048-v0", "envfleet.envs.board:MaskedPlay2048"),
        Environment(
            "envfleet/Turbofan-v0",
            "envfleet.envs.turbofan:Turbofan",
            1000,
            hosting="envfleet.envs.turbofan.hosting:EngineHosting",
        ),
        Environment("envfleet/Hockey-v0", f"{_HOCKEY}.kernel.game:Hockey", 251),
        Environment("envfleet/HockeyOne-v0", f"{_HOCKEY}.kernel.game:HockeyOne", 251),
        Environment("envfleet/Hockey-Box2D-v0", f"{_HOCKEY}.env:HockeyEnv", is_kernel=False),
        Environment("envfleet/Hockey-One-Box2D-v0", f"{_HOCKEY}.one_player:HockeyOneEnv", is_kernel=False),
        Environment("envfleet/Hockey-Two-Box2D-v0", f"{_HOCKEY}.two_player:HockeyTwoEnv", 251, is_kernel=False),
    )
}

_DEFAULT = Environment("", "")

_OF_GYMNASIUM = "gymnasium.envs.mujoco."
_OF_ENVFLEET = "envfleet.envs.mujoco."
TASKS: dict[str, str] = {
    f"{_OF_GYMNASIUM}{original}": f"{_OF_ENVFLEET}{task}"
    for original, task in {
        "ant_v5:AntEnv": "ant:Ant",
        "half_cheetah_v5:HalfCheetahEnv": "runners:HalfCheetah",
        "hopper_v5:HopperEnv": "runners:Hopper",
        "humanoid_v5:HumanoidEnv": "humanoids:Humanoid",
        "humanoidstandup_v5:HumanoidStandupEnv": "humanoids:HumanoidStandup",
        "inverted_double_pendulum_v5:InvertedDoublePendulumEnv": "pendulums:InvertedDoublePendulum",
        "inverted_pendulum_v5:InvertedPendulumEnv": "pendulums:InvertedPendulum",
        "pusher_v5:PusherEnv": "arms:Pusher",
        "reacher_v5:ReacherEnv": "arms:Reacher",
        "swimmer_v5:SwimmerEnv": "runners:Swimmer",
        "walker2d_v5:Walker2dEnv": "runners:Walker2d",
    }.items()
}
"""MuJoCo tasks that equal an environment bit for bit, by the entry point of that environment."""

GAMES: dict[str, str] = {"hockey": f"{_HOCKEY}.entry:HockeyGame"}
"""Two-player games by their name in configurations and commands; the first is the default.

Each is `"module:Name"` of an `envfleet.envs.games.Game`.
"""

RANDOM = "random"
"""Name of the player with random actions, which every game has."""


AGENTS = {name: f"envfleet.agents.{name.lower()}:{name}" for name in ("SAC", "TD3", "DDDQN", "PPO")}
"""Agents by class name, which configurations and saved agents use.

Each is `"module:Name"` of a class with the hyperparameters in `config_class`.
"""


def find_hosting(env_id: str) -> Any:
    """Return the interface of an environment to the service."""
    return resolve(ENVIRONMENTS.get(env_id, _DEFAULT).hosting)()


def resolve(target: str) -> Any:
    """Import and return the object `"module:name"`."""
    return pkgutil.resolve_name(target)


def find_own(target: str, place: str) -> Any:
    """Import a user's class or function from `"module:name"`.

    Args:
        target: `"module:name"`.
        place: Location of the name, such as the path of a key; messages begin with it.

    Raises:
        InvalidArgument: The format is invalid, the module or the name is missing, or the object is not callable.
    """
    module, _, name = target.partition(":")
    if not module or not name:
        raise InvalidArgument(f"{place} is {target!r}, expected 'module:name': write the module, a colon, the name")
    import_own(module, f"{place} is {target!r}")
    try:
        function = resolve(target)
    except AttributeError as error:
        raise InvalidArgument(f"{place} is {target!r}, but {error}: check the spelling of the name") from error
    if not callable(function):
        raise InvalidArgument(
            f"{place} is {target!r}, a {type(function).__name__}, which cannot be called: name a class or a function"
        )
    return function


def import_own(module: str, subject: str) -> Any:
    """Import a user's module.

    Args:
        module: Its name.
        subject: Beginning of error messages: the setting that has the name, and its place.

    Raises:
        InvalidArgument: The module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidArgument(
            f"{subject}, but the module cannot be imported ({error}): run from the folder that holds it, or install it"
        ) from error
