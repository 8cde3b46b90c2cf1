"""Models on disk: `config.json` and `model.safetensors` in a directory; nothing is ever unpickled.

Every file is written beside its place and moved there whole, so a killed process leaves the
old file or the new one, never half of either.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import safetensors
import safetensors.torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from architectures.config import ModelConfig
from architectures.stack import HookedStack

Data = TypeVar("Data", bound=BaseModel)

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"


class CheckpointError(ValueError):
    """A file that is missing, not whole, or does not belong to what it is loaded for."""


def save_model(model: HookedStack, directory: str | Path) -> Path:
    """Write the model's config and weights into `directory`, made if need be.

    Raises:
        OSError: the directory cannot be written.
    """
    directory = Path(directory)
    write_json(directory / CONFIG_FILE, model.config)
    write_tensors(directory / WEIGHTS_FILE, model.state_dict())
    return directory


def load_model(directory: str | Path) -> HookedStack:
    """The model that `save_model` wrote.

    Raises:
        CheckpointError: a file is missing, is not whole, or does not fit the other.
    """
    directory = Path(directory)
    config = read_config(directory)
    model = HookedStack(config)
    tensors, _ = read_tensors(directory / WEIGHTS_FILE)
    load_weights(model, tensors, directory / WEIGHTS_FILE)
    return model.eval()


def read_config(directory: str | Path) -> ModelConfig:
    """The config of the model saved in `directory`.

    Raises:
        CheckpointError: it is missing, or not a `ModelConfig`.
    """
    return read_json(ModelConfig, Path(directory) / CONFIG_FILE)


def read_json(kind: type[Data], path: Path) -> Data:
    """A file that holds one `kind` as JSON.

    Raises:
        CheckpointError: it is missing, or holds something else or only a part.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except ValidationError as error:
        problem = one_line(error)
        raise CheckpointError(f"{path} is not a whole {kind.__name__}: {problem}") from None


def write_json(path: Path, data: BaseModel) -> None:
    """Write what `read_json` reads, whole or not at all."""
    write_atomically(path, data.model_dump_json(indent=2).encode() + b"\n")


def one_line(error: ValidationError) -> str:
    """What is wrong first, and where."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def load_weights(model: HookedStack, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy `tensors` into the model's parameters.

    Raises:
        CheckpointError: names or shapes other than the model's; `source` is named in it.
    """
    own = model.state_dict()
    for name in own.keys() ^ tensors.keys():
        holder = "the file has" if name in tensors else "the model has"
        raise CheckpointError(f"{source} belongs to another model: only {holder} {name!r}")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise CheckpointError(
                f"{source} belongs to another model: {name!r} has shape {tuple(tensor.shape)} "
                f"there, {tuple(own[name].shape)} in the config"
            )
    model.load_state_dict(dict(tensors))


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file whole or not at all."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, safetensors.torch.save(contiguous, metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file.

    Raises:
        CheckpointError: the file is missing or not whole.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file ({error}); copy it again or train again"
        ) from None


def visible_files(directory: Path) -> list[Path]:
    """What is in a directory, but for what a killed write may have left there."""
    return [path for path in directory.iterdir() if not path.name.startswith(".")]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that it is never seen half-written, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # mkstemp's files are private
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
