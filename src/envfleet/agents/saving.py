"""Agents in files: written as a whole or not at all, read without executing anything."""

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
_TRUSTED = 6  # the format of files that are unpickled
_SPACES: dict[str, tuple[type, tuple[str, ...]]] = {  # by kind: the class, and the arguments it is made of
    "table": (ActionTable, ("actions",)),
    "discrete": (spaces.Discrete, ("n", "start")),
    "multi_discrete": (spaces.MultiDiscrete, ("nvec", "start", "dtype")),
    "multi_binary": (spaces.MultiBinary, ("n",)),
    "box": (spaces.Box, ("low", "high", "dtype")),
}


def write(path: str | Path, payload: Mapping[str, Any], *, is_trusted: bool = False) -> None:
    """Write nested dicts of tensors, arrays, numbers and text; readers see the old file or the new.

    Args:
        path: The file; its folder is made if there is none.
        payload: What `read` returns, with tensors for arrays.
        is_trusted: Whether it may be whatever pickles; then whoever reads it executes what is in it.

    Raises:
        OSError: It cannot be written, as on a full disk; the error names the file, and the old one stays.
    """
    content = {"format": _TRUSTED, **payload} if is_trusted else {"format": FORMAT, **portable(payload)}
    protocol = pickle.HIGHEST_PROTOCOL if is_trusted else torch.serialization.DEFAULT_PROTOCOL
    with replacing(path) as unfinished, unfinished.open("xb") as file:
        try:
            torch.save(content, file, pickle_protocol=protocol)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # such as a full disk, which PyTorch's archive talks over
                raise error.__context__ from None
            raise


def read(path: str | Path, *, is_trusted: bool = False) -> dict[str, Any]:
    """Read what `write` wrote, `is_trusted` or not, all tensors on the CPU.

    Raises:
        InvalidArgument: There is no such file, it is damaged, or it holds something else.
    """
    advice = "pass the folder of a run, or a file written by an agent's save()"
    try:
        with Path(path).open("rb") as file:
            damaged = _find_damage(zipfile.ZipFile(file))
            file.seek(0)
            payload: Any = damaged or torch.load(file, map_location="cpu", weights_only=not is_trusted)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read ({error.strerror}): {advice}") from error
    except Exception as error:  # bytes that mean nothing break the unpickler in whatever way they happen to
        raise InvalidArgument(
            f"{path} cannot be read as a saved agent: it is damaged, or holds something else; {advice}"
        ) from error
    if damaged is not None:
        raise InvalidArgument(f"{path} is damaged: {damaged!r} in it is not as it was written; use another checkpoint")
    expected = _TRUSTED if is_trusted else FORMAT
    found = payload.get("format") if isinstance(payload, dict) else type(payload).__name__
    if found != expected:
        raise InvalidArgument(f"{path} has format {found}, expected {expected}: {advice}")
    content: dict[str, Any] = payload
    return content


def _find_damage(archive: zipfile.ZipFile) -> str | None:
    """Return the name of a damaged entry, `None` if there is none.

    PyTorch compares no checksums when it loads an archive. `testzip` does, but accepts a size that is too large and
    attributes of a folder, with which PyTorch returns memory that it never wrote to. It writes neither: it compresses
    nothing and sets no attributes.
    """
    for entry in archive.infolist():
        if entry.file_size != entry.compress_size or entry.internal_attr or entry.external_attr:
            return entry.filename
    return archive.testzip()


def portable(value: Any) -> Any:
    """Return a copy with tensors for arrays, and of tensors; dicts, lists and tuples are gone through."""
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
    """Return a NumPy copy of an array, or of the tensor that `portable` made of it."""
    array: NDArray[Any] = value.numpy(force=True).copy() if isinstance(value, torch.Tensor) else np.array(value)
    return array


def encode_space(space: spaces.Space[Any] | ActionTable) -> dict[str, Any]:
    """Return a space as plain values.

    Raises:
        InvalidArgument: No agent takes such a space.
    """
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "spaces": {key: encode_space(inner) for key, inner in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "spaces": [encode_space(inner) for inner in space.spaces]}
    for kind, (made_of, names) in _SPACES.items():
        if isinstance(space, made_of):
            form = {name: getattr(space, name) for name in names}
            return {"kind": kind, **form, **({"dtype": form["dtype"].name} if "dtype" in form else {})}
    raise InvalidArgument(f"an agent cannot be saved with the space {space}, expected one that agents take")


def decode_space(form: Mapping[str, Any]) -> Any:
    """Return the space that `encode_space` was given."""
    if form["kind"] == "dict":  # in the order of the keys; a dict would be sorted
        return spaces.Dict([(key, decode_space(inner)) for key, inner in form["spaces"].items()])
    if form["kind"] == "tuple":
        return spaces.Tuple([decode_space(inner) for inner in form["spaces"]])
    given = {name: as_array(value) if isinstance(value, torch.Tensor) else value for name, value in form.items()}
    del given["kind"]
    return _SPACES[form["kind"]][0](**given)
