"""Files of saved agents: written atomically, read without executing code."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents.actions import ActionTable
from envfleet.errors import InvalidArgument
from envfleet.files import replacing

FORMAT = 5
_OF_SB3 = "_stable_baselines3_version"  # entry of its archives
_TRUSTED = 6  # format of files that are unpickled
_SPACES: dict[str, tuple[type, tuple[str, ...]]] = {  # by name: class and constructor arguments
    "table": (ActionTable, ("actions",)),
    "discrete": (spaces.Discrete, ("n", "start")),
    "multi_discrete": (spaces.MultiDiscrete, ("nvec", "start", "dtype")),
    "multi_binary": (spaces.MultiBinary, ("n",)),
    "box": (spaces.Box, ("low", "high", "dtype")),
}


def write(path: str | Path, payload: Mapping[str, Any], *, is_trusted: bool = False) -> None:
    """Write nested dicts of tensors, arrays, numbers and text to a file, atomically.

    Args:
        path: Path of the file; its folder is created.
        payload: Contents, which `read` returns with tensors instead of arrays.
        is_trusted: True to pickle arbitrary objects; reading such a file executes code in it.

    Raises:
        OSError: The file cannot be written, for example because the disk is full; an old file is kept.
    """
    content = {"format": _TRUSTED, **payload} if is_trusted else {"format": FORMAT, **portable(payload)}
    protocol = pickle.HIGHEST_PROTOCOL if is_trusted else torch.serialization.DEFAULT_PROTOCOL
    with replacing(path) as unfinished, unfinished.open("xb") as file:
        try:
            torch.save(content, file, pickle_protocol=protocol)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # such as a full disk, which PyTorch's error hides
                raise error.__context__ from None
            raise


def read(path: str | Path, *, is_trusted: bool = False) -> dict[str, Any]:
    """Return the contents of a file from `write`, with all tensors on the CPU.

    Raises:
        InvalidArgument: The file does not exist, is damaged or is not a saved agent.
    """
    advice = "pass the folder of a run, or a file written by an agent's save()"
    try:
        with Path(path).open("rb") as file:
            archive = zipfile.ZipFile(file)
            if _OF_SB3 in archive.namelist():
                raise InvalidArgument(
                    f"{path} is a model of Stable-Baselines3, not a saved agent: load it by its class, as in PPO.load, "
                    "and pass the model, or on the command line module:function of a function that calls its predict()"
                )
            damaged = _find_damage(archive)
            file.seek(0)
            payload: Any = damaged or torch.load(file, map_location="cpu", weights_only=not is_trusted)
    except InvalidArgument:
        raise
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read ({error.strerror}): {advice}") from error
    except Exception as error:  # arbitrary bytes can make the unpickler raise anything
        raise InvalidArgument(
            f"{path} cannot be read as a saved agent, since it is damaged or another kind of file: {advice}"
        ) from error
    if damaged is not None:
        raise InvalidArgument(f"{path} is damaged (its entry {damaged!r} has changed): use another checkpoint")
    expected = _TRUSTED if is_trusted else FORMAT
    version = payload.get("format") if isinstance(payload, dict) else type(payload).__name__
    if version != expected:
        raise InvalidArgument(f"{path} has format {version}, expected {expected}: {advice}")
    content: dict[str, Any] = payload
    return content


def _find_damage(archive: zipfile.ZipFile) -> str | None:
    """Return the name of a damaged entry, or `None`.

    PyTorch does not compare checksums when it loads an archive. `testzip` does, but accepts a size that is too large
    and attributes of a folder, with which PyTorch returns uninitialized memory. PyTorch never writes such entries.
    """
    for entry in archive.infolist():
        if entry.file_size != entry.compress_size or entry.internal_attr or entry.external_attr:
            return entry.filename
    return archive.testzip()


def portable(value: Any) -> Any:
    """Return a deep copy of dicts, lists, tuples and tensors, with tensors instead of arrays."""
    if isinstance(value, Mapping):
        return {key: portable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(entry) for entry in value]
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return value.item() if isinstance(value, np.generic) else value


def as_array(value: Any) -> NDArray[Any]:
    """Return a NumPy copy of an array or tensor."""
    array: NDArray[Any] = value.numpy(force=True).copy() if isinstance(value, torch.Tensor) else np.array(value)
    return array


def encode_space(space: spaces.Space[Any] | ActionTable) -> dict[str, Any]:
    """Return a space as plain values for `decode_space`.

    Raises:
        InvalidArgument: No agent supports the space.
    """
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "spaces": {key: encode_space(inner) for key, inner in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "spaces": [encode_space(inner) for inner in space.spaces]}
    for kind, (space_class, names) in _SPACES.items():
        if isinstance(space, space_class):
            form = {name: getattr(space, name) for name in names}
            return {"kind": kind, **form, **({"dtype": form["dtype"].name} if "dtype" in form else {})}
    raise InvalidArgument(f"an agent cannot be saved with the space {space}: use a space that agents support")


def decode_space(form: Mapping[str, Any]) -> Any:
    """Return the space that `encode_space` encoded."""
    if form["kind"] == "dict":  # in the order of the keys; a dict would be sorted
        return spaces.Dict([(key, decode_space(inner)) for key, inner in form["spaces"].items()])
    if form["kind"] == "tuple":
        return spaces.Tuple([decode_space(inner) for inner in form["spaces"]])
    arguments = {name: as_array(value) if isinstance(value, torch.Tensor) else value for name, value in form.items()}
    del arguments["kind"]
    return _SPACES[form["kind"]][0](**arguments)
