"""What a run needs to continue exactly, in one file that is replaced in one step.

The file is safetensors: tensors of the model, the average and the optimizer; everything else is
JSON in its header, with a checksum over both. No pickle, so that a checkpoint cannot run code. The
keys of the noise are not in it, see :mod:`forethought.training.keys`; it is 0600 all the same.

Beside it lies the list of releases: each round's number and what its noise is bound to, written
*before* the noise is drawn. A killed run's list therefore covers all that it may have released
since its checkpoint. Resuming computes those rounds again with the same batches. A sum that comes
out the same has the same noise: the same release. Another sum has other noise, and is one more
release of its round, which the list shows and the statement counts.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from forethought.rounds.records import content

CHECKPOINT_SCHEMA = "forethought/checkpoint/3"
STATE, RELEASED = "state.safetensors", "released"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or that belongs to another run."""


@dataclass
class Checkpoint:
    """State after ``round`` rounds.

    Args:
        tensors: name → tensor, names prefixed by who owns them.
        values: everything else, JSON-ready.
    """

    round: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the checkpoint in ``folder``: after a crash there is the old one or the new.

        Raises:
            OSError: cannot be written; the old one is untouched.
        """
        header = {"schema": CHECKPOINT_SCHEMA, "round": self.round, "values": self.values}
        own = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        header["checksum"] = _checksum(header, own)
        replace_file(folder / STATE, save(own, {"forethought": json.dumps(header)}), mode=0o600)

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """The checkpoint in ``folder``, tensors on the CPU.

        Raises:
            CheckpointError: none there, or damaged, or of another version.
        """
        path = folder / STATE
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: there is no run to resume in {folder}")
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["forethought"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} holds no checkpoint: {error}") from error
        if header.get("schema") != CHECKPOINT_SCHEMA:
            raise CheckpointError(
                f"{path} was written by another version: schema {header.get('schema')!r}, "
                f"expected {CHECKPOINT_SCHEMA!r}. Finish the run with the version that began it"
            )
        if header.pop("checksum", None) != _checksum(header, tensors):
            raise CheckpointError(
                f"{path} is damaged: its content does not match its checksum. Restore it from a "
                "copy, or start a new run in another folder"
            )
        return cls(header["round"], tensors, header["values"])


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> str:
    state = blake3(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(content(tensor))
    return state.hexdigest()


def optimizer_state(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state as tensors and plain values; step sizes follow from the plan.

    Raises:
        TypeError: state of a kind that can be stored in neither.
    """
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            key = f"{index}/{name}"
            if isinstance(value, torch.Tensor):
                tensors[key] = value
            elif value is None or isinstance(value, (bool, int, float, str)):
                values[key] = value
            else:
                raise TypeError(
                    f"{type(optimizer).__name__} keeps {name!r} as {type(value).__name__}, which "
                    "cannot be stored in a checkpoint; use another optimizer or train without out"
                )
    return tensors, values


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
) -> None:
    """The inverse of :func:`optimizer_state`."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in (*tensors.items(), *values.items()):
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


class ReleasedRounds:
    """The releases that may have been made, in a file that only grows.

    It survives the death of the process at any point. After a power failure those since the last
    checkpoint may be missing, and a round that is then released again with another sum is not
    counted; one that lacks an entry of before the checkpoint is refused (:meth:`require`).
    """

    def __init__(self, folder: Path) -> None:
        path = folder / RELEASED
        if not path.exists():
            replace_file(path, b"", mode=0o600)
        self._bound: dict[int, list[bytes]] = {}
        self._hash, self._entries = blake3(), 0
        for index, bound in _releases(path):
            self._took(index, bound)
        self._file = path.open("r+b", buffering=0)
        # Behind the last whole entry: a kill can have torn one, which came to nothing.
        self._file.truncate(self._file.seek(self._entries * _ENTRY))

    @classmethod
    def peek(cls, folder: Path) -> dict[int, int]:
        """Round → how often it may have been released, as the file in ``folder`` says."""
        found: dict[int, int] = {}
        for index, _ in _releases(folder / RELEASED):
            found[index] = found.get(index, 0) + 1
        return found

    def note(self, index: int, bound: bytes) -> int:
        """Write a release down, before its noise is drawn.

        Args:
            index: of the round. bound: what its noise is bound to, 32 bytes.

        Returns:
            How many releases of the round there are with this one; the same one counts once.

        Raises:
            OSError: it could not be written whole (a full disk): nothing may be released.
        """
        known = self._bound.get(index, [])
        if bound not in known:
            end = self._file.tell()
            written = 0
            try:
                written = self._file.write(_entry(index, bound))
            finally:
                if written != _ENTRY:
                    self._file.truncate(end)
                    self._file.seek(end)
            if written != _ENTRY:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
            self._took(index, bound)
        return len(self._bound[index])

    def mark(self) -> list[int | str]:
        """How many entries there are, and their hash, once they are on the disk."""
        os.fsync(self._file.fileno())
        return [self._entries, self._hash.hexdigest()]

    @classmethod
    def require(cls, folder: Path, mark: list[int | str]) -> None:
        """Refuse a list that does not begin with what a checkpoint has seen of it.

        Raises:
            CheckpointError: entries of before the checkpoint are gone or others.
        """
        entries, expected = mark
        found = blake3()
        held = 0
        for index, bound in itertools.islice(_releases(folder / RELEASED), int(entries)):
            found.update(_entry(index, bound))
            held += 1
        if [held, found.hexdigest()] != [entries, expected]:
            raise CheckpointError(
                f"cannot resume: {folder / RELEASED} lists what was released, and {entries} "
                f"entries of before the last checkpoint are not all there (found {held}). What was "
                "released could be released again and not be counted. Restore the whole checkpoint "
                "folder, or start a new run in another folder"
            )

    def _took(self, index: int, bound: bytes) -> None:
        self._bound.setdefault(index, []).append(bound)
        self._hash.update(_entry(index, bound))
        self._entries += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# A round's number, and what its noise is bound to.
_ENTRY = 8 + 32


def _entry(index: int, bound: bytes) -> bytes:
    return index.to_bytes(8, "little") + bound


def _releases(path: Path) -> Iterator[tuple[int, bytes]]:
    """The whole entries of a list of releases."""
    content = path.read_bytes() if path.is_file() else b""
    for start in range(0, len(content) - _ENTRY + 1, _ENTRY):
        yield (
            int.from_bytes(content[start : start + 8], "little"),
            content[start + 8 : start + _ENTRY],
        )


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that it is seen whole or not at all, even after a power failure.

    Raises:
        OSError: cannot be written; the old content is untouched.
    """
    temporary = path.with_name(f".{path.name}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        descriptor = os.open(temporary, flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or removal in ``folder`` durable, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
