"""Optional dependencies: the extra of envfleet that installs each package."""

from __future__ import annotations

from envfleet.errors import MissingDependency

_EXTRAS = {
    "PIL": "video",
    "Box2D": "hockey",
    "ale_py": "peers",
    "alembic": "serve",
    "dotenv": "client",
    "envpool": "peers",
    "fastapi": "serve",
    "h5py": "record",
    "httpx": "client",
    "imageio": "video",
    "imageio_ffmpeg": "video",
    "jinja2": "serve",
    "matplotlib": "train",
    "mujoco": "mujoco",
    "minari": "record",
    "minigrid": "peers",
    "msgpack": "client",
    "numba": "kernels",
    "onnx": "export",
    "openskill": "train",
    "optuna": "search",
    "pettingzoo": "hockey",
    "polars": "train",
    "prometheus_client": "serve",
    "psutil": "cli",
    "psycopg": "serve",
    "pydantic": "train",
    "pygame": "hockey",
    "python_multipart": "serve",
    "ray": "ray",
    "rich": "cli",
    "sqlalchemy": "serve",
    "stable_baselines3": "peers",
    "tensorboard": "train",
    "torch": "train",
    "typer": "cli",
    "uvicorn": "serve",
    "websockets": "openenv",
}
"""Extra that installs a package, by the import name of the package."""


def is_optional(error: ImportError) -> bool:
    """Return whether an extra installs the package that could not be imported."""
    return _package(error) in _EXTRAS


def missing(what: str, error: ImportError) -> MissingDependency:
    """Return the error with the command that installs a missing package.

    Args:
        what: Feature that needs the package, the beginning of the message, such as `"training"`.
        error: Error of the import.
    """
    package = _package(error)
    problem = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported here ({error})"
    extra = _EXTRAS.get(package)
    install = f"pip install 'envfleet[{extra}]'" if extra else f"pip install {package or 'it'}"
    return MissingDependency(f"{what} needs {package or 'a package'}, which {problem}: {install}")


def _package(error: ImportError) -> str:
    return (error.name or "").partition(".")[0]
