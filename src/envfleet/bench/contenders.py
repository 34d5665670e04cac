"""Who can take part, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from envfleet.bench.fleets import EnvFleet
from envfleet.bench.peers import BareLoop, Contender, EnvPool, GymnasiumVector, StableBaselines3
from envfleet.errors import InvalidArgument

BASELINE = "loop"
CONTENDERS: Mapping[str, Contender] = {
    contender.name: contender
    for contender in (
        BareLoop(),
        BareLoop(is_checked=True),
        GymnasiumVector("sync"),
        GymnasiumVector("async"),
        StableBaselines3("dummy"),
        StableBaselines3("subproc"),
        EnvPool(),
        EnvFleet("serial"),
        EnvFleet("thread"),
        EnvFleet("process"),
        EnvFleet("ray"),
        EnvFleet("auto"),
        EnvFleet("kernel"),
    )
}
PEER_NAMES: tuple[str, ...] = tuple(name for name in CONTENDERS if not name.startswith("envfleet-"))
BACKEND_NAMES: tuple[str, ...] = ("auto", "serial", "thread", "process", "ray", "kernel")
# Gymnasium's passive checker looks at the first step only since 1.0, so loop-default differs from loop by little.
DEFAULT_PEERS: tuple[str, ...] = tuple(name for name in PEER_NAMES if name != "loop-default")
DEFAULT_BACKENDS: tuple[str, ...] = ("auto", "serial", "process", "kernel")


def is_ours(name: str) -> bool:
    """Tell whether a contender is a fleet of this package."""
    return name.startswith("envfleet-")


def find_contenders(names: Iterable[str]) -> list[Contender]:
    """Look up contenders by name.

    Raises:
        InvalidArgument: There is no contender of that name.
    """
    found = []
    for name in names:
        if name not in CONTENDERS:
            raise InvalidArgument(
                f"{name!r} is no contender: expected some of {', '.join(CONTENDERS)} "
                "(backends of envfleet are named with --backends, peers with --peers)."
            )
        found.append(CONTENDERS[name])
    return found
