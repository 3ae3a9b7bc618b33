"""The run folder: lock, checks before the run, checkpoints, exact continuation, reading it back."""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from forethought import __version__
from forethought.accounting.exact import epsilon
from forethought.accounting.interval import at_most
from forethought.accounting.statement import OF_RUN, Statement, StatementError, content_hash
from forethought.gradients.boundary import STANDARD, of_user, shards_of
from forethought.gradients.sharded import load_whole, tensors_of
from forethought.rounds.preparation import Prepared
from forethought.rounds.randomness import SECRET_BYTES, Secrets, Seeds
from forethought.rounds.records import Records, content
from forethought.training.metrics import PRIVATE, PUBLIC, Metrics, Results, as_csv, from_csv
from forethought.training.records import PREPARED
from forethought.values.caveats import Caveat
from forethought.values.checks import RunFolderExistsError, one_of, without_none
from forethought.values.mechanism import Mechanism
from forethought.values.plan import TRANSCRIPT, Plan, Transcript
from forethought.values.serialisation import digest, parse, replaced, sync_folder

if TYPE_CHECKING:
    from forethought.training.shapes import Shapes

# The facts by which a run is recognised, so that resuming it repeats its own rounds only.
#
# Rounds released after the last checkpoint are computed again. If data, model or settings had
# changed, each of these rounds would be one more release (:mod:`forethought.rounds.randomness`).
# They are therefore compared first, by hashes under the run's own key. A change that can have good
# reasons, such as edited code, only causes a warning (:func:`watched`).


def identity(
    model: torch.nn.Module,
    records: Records,
    test: Records | None,
    loss: Callable[..., Any],
    key: bytes,
    batch_dims: object = None,
) -> dict[str, str]:
    """The parts of the run → keyed hashes. A run is resumed only if all of them match.

    Args:
        key: 32 bytes. Every record is hashed.
        batch_dims: which dimension of the model's tensors holds the examples, if the user
            declares it.
    """
    return {
        "data": records.digest(key),
        "held-out data": "" if test is None else test.digest(key),
        "model": blake3(_architecture(model).encode(), key=key).hexdigest(),
        "loss": blake3(fingerprint(loss), key=key).hexdigest(),
        "batch_dims": blake3(fingerprint(batch_dims), key=key).hexdigest(),
    }


def environment(
    model: torch.nn.Module, micro_batch: int | None, processes: int = 1
) -> dict[str, str]:
    """The facts that can change a result by rounding, or change the stream of random numbers."""
    device = next(model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": f"{device.type} {name}",
        "threads": str(torch.get_num_threads()),
        "micro_batch": str(micro_batch),
        "processes": str(processes),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "randomgen": version("randomgen"),
        "forethought": __version__,
    }


def watched(model: torch.nn.Module, loss: Callable[..., Any], key: bytes) -> dict[str, str]:
    """More that a sum may depend on → keyed hashes; a change causes a warning, not a refusal.

    Args:
        key: 32 bytes.
    """
    modules = dict(model.named_modules())
    kinds = dict.fromkeys(map(type, modules.values()))
    # By their order: torch's keys count all hooks of a process, so that they differ in the next.
    hooked = [
        dict(enumerate(hook for hook in hooks.values() if not _shards(hook)))
        for module in modules.values()
        for hooks in (module._forward_pre_hooks, module._forward_hooks)
    ]
    weights = {p.data_ptr() for p in model.parameters() if not hasattr(p, "to_local")} - {0}
    held: dict[str, Any] = {
        "code of model or loss, or a value that it names": [loss, *kinds, *hooked],
        "plain attributes of the model": {
            name: {
                part: value
                for part, value in vars(module).items()
                if not (part in STANDARD or part.startswith(_COMPOSED) or _follows(value, weights))
            }
            for name, module in modules.items()
        },
        "buffers that no checkpoint holds": {
            f"{name}.{part}": module._buffers[part]
            for name, module in modules.items()
            for part in sorted(module._non_persistent_buffers_set)
        },
        "instruction set": _instructions(),
    }
    return {
        name: blake3(fingerprint(value, wide=True), key=key).hexdigest()
        for name, value in held.items()
    }


# Attribute that fully_shard leaves in a module; it belongs to the process and not to the run.
_COMPOSED = "__composable_api_state"


def _follows(value: Any, weights: set[int]) -> bool:
    """True for a tensor made of weights, which a checkpoint holds (as weight_norm leaves one)."""
    made = isinstance(value, torch.Tensor)
    return made and (value.grad_fn is not None or value.data_ptr() in weights)


def _shards(hook: Callable[..., Any]) -> bool:
    return getattr(hook, "__module__", "").startswith("torch.distributed.fsdp")


def _instructions() -> list[str]:
    """The facts by which the numerical libraries choose their code paths."""
    found = [torch.backends.cpu.get_cpu_capability()]
    found += [os.environ.get(name, "") for name in ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA")]
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        found += [line for line in file if line.startswith(("flags", "Features"))][:1]
    return found


def differing(saved: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, str]:
    """The names whose values differ, in order → words that say how."""
    words = {name: f"{name} was {saved[name]}, is {present.get(name)}" for name in sorted(saved)}
    return {name: told for name, told in words.items() if saved[name] != present.get(name)}


def require_same(saved: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Refuse to resume with other data, another model or another loss.

    Raises:
        CheckpointError: a part changed; the message names it.
    """
    if changed := " and ".join(differing(saved, present)):
        raise CheckpointError(
            f"cannot resume: {changed} changed since the run began, and its rounds would be about "
            "something else. Give what it began with, or start a new run in another folder"
        )


def _architecture(model: torch.nn.Module) -> str:
    """The modules, their settings and code, and the shape of every tensor; not the weights."""
    modules = {type(module) for module in model.modules()}
    lines = [_ADDRESS.sub("", repr(model))]
    lines += [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in tensors_of(model).items()]
    lines += [f"{name} {p.requires_grad}" for name, p in model.named_parameters()]
    lines += [f"{name} {module.training}" for name, module in model.named_modules()]
    lines += sorted(f"{kind.__qualname__} {_code(kind.forward.__code__)}" for kind in modules)
    return "\n".join(lines)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(value: Any, *, wide: bool = False) -> bytes:
    """A hash of the work of a function: its code, and the values it closes over or is bound to.

    The hash covers partials, closures, defaults, bound objects, callable objects, modules with
    their tensors, and the plain values and functions of its own module that the code names.

    Args:
        wide: also cover everything that the code names in the user's own modules, classes and
            objects included.

    Returns:
        32 bytes (SHA-256).
    """
    state = hashlib.sha256()
    _feed(value, state.update, {}, wide)
    return state.digest()


# The largest number of objects that one fingerprint covers.
_MOST = 20_000


def _feed(value: Any, take: Callable[[bytes], None], seen: dict[int, Any], wide: bool) -> None:
    if isinstance(value, torch.Tensor):
        take(f"tensor {value.dtype} {tuple(value.shape)}".encode())
        take(content(value))
        return
    if isinstance(value, np.ndarray):
        take(f"array {value.dtype} {value.shape}".encode())
        take(np.ascontiguousarray(value).tobytes() if value.dtype != object else b"")
        return
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        take(f"{type(value).__name__} {value!r};".encode())
        return
    if id(value) in seen or len(seen) == _MOST:
        take(b"again")
        return
    seen[id(value)] = value  # kept alive, so that no other object gets the same id
    for part in _parts(value, wide):
        _feed(part, take, seen, wide)


def _of_user_s_own(value: Any) -> list[Any]:
    """The parts of an object or class that the user's own code defines, in any module."""
    kind = type(value)
    if isinstance(value, classmethod | staticmethod):
        return ["method", value.__func__]
    if isinstance(value, property):
        return ["property", value.fget]
    if isinstance(value, type):
        if not of_user(value.__module__):
            return [value.__qualname__]
        held = {name: part for name, part in vars(value).items() if _speaks(name, part)}
        return ["class", value.__qualname__, held, list(value.__bases__)]
    if kind is not SimpleNamespace and not of_user(kind.__module__):
        return [kind.__qualname__]
    return [kind, dict(getattr(value, "__dict__", {}))]


def _speaks(name: str, part: Any) -> bool:
    """True if the entry of a class stands in its source; false if Python adds it."""
    code = isinstance(part, FunctionType | classmethod | staticmethod | property)
    return code or not name.startswith("__")


def _named(function: FunctionType) -> dict[str, Any]:
    """The globals that a function names; of the user's modules, the attributes that it names."""
    names = _names(function.__code__)
    found: dict[str, Any] = {}
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if of_user(value.__name__):
                found.update((f"{name}.{part}", vars(value).get(part)) for part in names)
        elif value is not None:
            found[name] = value
    return found


def _parts(value: Any, wide: bool) -> list[Any]:
    """The parts of a value, the name of its kind first."""
    if isinstance(value, functools.partial):
        return ["partial", value.func, list(value.args), dict(value.keywords)]
    if isinstance(value, Mapping):
        return ["mapping", *(part for pair in value.items() for part in pair)]
    if isinstance(value, tuple | list):
        return ["sequence", *value]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(_ADDRESS.sub("", repr(one)) for one in value)]
    if isinstance(value, MethodType):
        return ["method", value.__func__, value.__self__]
    if isinstance(value, FunctionType):
        if not wide:
            return _of_function(value)
        if not of_user(value.__module__):
            return [value.__qualname__]
        return [*_of_function(value), dict(sorted(_named(value).items()))]
    if isinstance(value, torch.nn.Module):
        kind = [type(value)] if wide else []
        return ["module", _architecture(value), *kind, dict(value.state_dict())]
    if wide:
        return _of_user_s_own(value)
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return [_ADDRESS.sub("", repr(value))]
    called = vars(type(value)).get("__call__")
    return [type(value).__qualname__, *([called] if called else []), dict(vars(value))]


def _of_function(function: FunctionType) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not filled yet
            cells.append("empty")
    named = {}
    for name in _names(function.__code__):
        found = function.__globals__.get(name)
        own = isinstance(found, FunctionType) and found.__module__ == function.__module__
        if own or isinstance(found, bool | int | float | str | torch.Tensor | np.ndarray):
            named[name] = found
    defaults = function.__defaults__, function.__kwdefaults__
    return [function.__qualname__, _code(function.__code__), *defaults, cells, named]


def _names(code: CodeType) -> list[str]:
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c)]
    return sorted({*code.co_names, *inner})


def _code(code: CodeType) -> str:
    constants = list(map(_constant, code.co_consts))
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _code(value)
    # The words of a set are in another order in every process.
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


# One run at a time in a folder: the lock ends with its process, even if the process is killed.


try:
    import fcntl
except ImportError:  # this system has no such locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class RunFolderBusyError(ValueError):
    """Another process is running in the folder."""


@contextlib.contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Hold the lock of a run folder, which is made when missing. For None, lock nothing.

    Raises:
        RunFolderBusyError: another process holds the lock.
        OSError: the folder cannot be written.
    """
    if folder is None or fcntl is None or (folder.exists() and not folder.is_dir()):
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    place, descriptor = _take(path, folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_UN)  # a forked process may have it open, too
        os.close(place)
        path.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):
            folder.rmdir()  # works only if the run wrote nothing


def _training_in(folder: Path) -> int | None:
    # Taking the lock for a moment could turn away a run that begins in that moment.
    with contextlib.suppress(OSError, ValueError, OverflowError):
        process = int((folder / LOCK).read_text())
        if fcntl is not None and process > 0:
            os.kill(process, 0)  # raises where there is no such process
            return process
    return None


def _take(path: Path, folder: Path) -> tuple[int, int]:
    """The locked folder and file: the file may be deleted by hand while its run goes on."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        place = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:  # file servers may lock files only
                pass
        except OSError as error:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(place)
            os.close(descriptor)
            raise RunFolderBusyError(
                f"a run is going on in {folder} (process {owner or 'unknown'}): wait, or stop it"
            ) from error
        # The previous owner may have removed the file after we opened it and before we locked it.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return place, descriptor
        os.close(place)
        os.close(descriptor)


# The checkpoint: all that a run needs to continue exactly, in one file, replaced in one step.
#
# The file is safetensors: tensors of the model, the average and the optimizer; everything else is
# JSON in its header, with a checksum over both. It is no pickle, so that reading a checkpoint
# cannot run code. The keys of the noise are in another file (:class:`RunSecrets`); the checkpoint
# has mode 0600 all the same.
#
# Beside it lies the list of releases: each round's number and the hash that its noise is bound to,
# written *before* the noise is drawn. The list of a killed run therefore covers all that it may
# have released since its checkpoint. Resuming computes those rounds again with the same batches. A
# sum that is the same bit for bit gets the same noise, so it is the same release. Another sum gets
# other noise, and is one more release of its round, which the list shows and the statement counts.


CHECKPOINT_SCHEMA = "forethought/checkpoint/3"
STATE, RELEASED = "state.safetensors", "released"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or that belongs to another run."""


@dataclass
class Checkpoint:
    """State after ``round`` rounds.

    Args:
        tensors: name → tensor; a prefix of the name says which object the tensor belongs to.
        values: everything else, as JSON values.
    """

    round: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the checkpoint in ``folder``; after a crash, it is the old one or the new one.

        Raises:
            OSError: the file cannot be written; the old one is unchanged.
        """
        header = {"schema": CHECKPOINT_SCHEMA, "round": self.round, "values": self.values}
        own = untied(self.tensors)
        header["checksum"] = _checksum(header, own)
        replace_file(folder / STATE, save(own, {"forethought": json.dumps(header)}), mode=0o600)

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """Read the checkpoint in ``folder``; its tensors are on the CPU.

        Raises:
            CheckpointError: the file is missing, damaged, or of another version.
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
            raise CheckpointError(f"{path} is of another version: finish the run with that")
        if header.pop("checksum", None) != _checksum(header, tensors):
            raise CheckpointError(f"{path} is damaged, by its checksum: restore it from a copy")
        return cls(header["round"], tensors, header["values"])


def untied(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors on the CPU without shared memory, as of tied weights, which safetensors refuses."""
    seen: set[int] = set()
    own = {}
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return own


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> str:
    state = blake3(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(content(tensor))
    return state.hexdigest()


class ReleasedRounds:
    """The list of releases that may have been made, in a file that only grows.

    The list survives the death of the process at any point. After a power failure, the entries
    since the last checkpoint may be missing; a round that is then released again with another sum
    is not counted. A list that lacks an entry from before the checkpoint is refused
    (:meth:`require`).
    """

    def __init__(self, folder: Path) -> None:
        path = folder / RELEASED
        if not path.exists():
            replace_file(path, b"", mode=0o600)
        entries = _releases(path)
        self._entries, self._times = set(entries), Counter(map(_round_of, entries))
        self._hash = blake3(b"".join(entries))
        self._file = path.open("r+b", buffering=0)
        # Continue behind the last whole entry. A kill can leave a partial one; its release was
        # never made.
        self._file.truncate(self._file.seek(len(entries) * _ENTRY))

    @classmethod
    def peek(cls, folder: Path) -> dict[int, int]:
        """Round → number of releases that may have been made, read from the file in ``folder``."""
        return dict(Counter(map(_round_of, _releases(folder / RELEASED))))

    def note(self, index: int, bound: bytes) -> int:
        """Write down a release before its noise is drawn.

        Args:
            index: number of the round.
            bound: hash that its noise is bound to, 32 bytes.

        Returns:
            The number of releases of the round, this one included; equal releases count once.

        Raises:
            OSError: the entry could not be written whole (full disk), so nothing may be released.
        """
        entry = index.to_bytes(8, "little") + bound
        if entry not in self._entries:
            end, written = self._file.tell(), 0
            try:
                written = self._file.write(entry)
            finally:
                if written != _ENTRY:
                    self._file.truncate(end)
                    self._file.seek(end)
            if written != _ENTRY:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)
            self._entries.add(entry)
            self._times[index] += 1
            self._hash.update(entry)
        return self._times[index]

    def mark(self) -> list[int | str]:
        """Flush the list to the disk; return its number of entries and their hash."""
        os.fsync(self._file.fileno())
        return [self._times.total(), self._hash.hexdigest()]

    @classmethod
    def require(cls, folder: Path, mark: list[int | str]) -> None:
        """Refuse a list that does not begin with the entries that a checkpoint has recorded.

        Raises:
            CheckpointError: entries from before the checkpoint are missing or changed.
        """
        kept = _releases(folder / RELEASED)[: int(mark[0])]
        if [len(kept), blake3(b"".join(kept)).hexdigest()] != mark:
            raise CheckpointError(
                f"cannot resume: {folder / RELEASED} lists what was released, and {mark[0]} "
                f"entries of before the last checkpoint are not all there (found {len(kept)}), so "
                "that releases would not be counted. Restore the whole checkpoint folder, or start "
                "a new run in another folder"
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# Bytes of an entry: a round's number, and the hash that its noise is bound to.
_ENTRY = 8 + 32


def _releases(path: Path) -> list[bytes]:
    """The whole entries of a list of releases."""
    content = path.read_bytes() if path.is_file() else b""
    return [content[end - _ENTRY : end] for end in range(_ENTRY, len(content) + 1, _ENTRY)]


def _round_of(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "little")


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file in one step: readers see the old or the new content, even after a power failure.

    Raises:
        OSError: the file cannot be written; the old content is unchanged.
    """
    with replaced(path, mode) as file:
        file.write(content)
    sync_folder(path.parent)


# The keys of a run: one small file, written once, overwritten in place when the run ends.
#
# Anyone who has the keys can draw the noise again and subtract it. The keys are in no other file,
# so that overwriting this one is enough where the file system overwrites in place. Journaling,
# copy-on-write and compressing file systems, and flash memory, may keep copies of overwritten
# blocks: use an encrypted disk.


KEYS = "keys"
KEYS_SCHEMA = "forethought/keys/1"


@dataclass(frozen=True)
class RunSecrets:
    """All secret keys of a run.

    Args:
        secrets: keys of sampling and noise.
        identity: key of the hashes by which data, model and loss are recognised; 32 bytes.
    """

    secrets: Secrets
    identity: bytes

    @classmethod
    def draw(cls, seeds: Seeds) -> RunSecrets:
        """Draw new keys; see :meth:`Secrets.draw`."""
        return cls(Secrets.draw(seeds), secrets.token_bytes(SECRET_BYTES))

    def write(self, folder: Path) -> None:
        """Write the key file, readable by its owner only.

        Raises:
            OSError: the file cannot be written.
        """
        own = {"schema": KEYS_SCHEMA, **vars(self.secrets), "identity": self.identity}
        values = {key: one.hex() if isinstance(one, bytes) else one for key, one in own.items()}
        replace_file(folder / KEYS, json.dumps(values).encode(), mode=0o600)

    @classmethod
    def read(cls, folder: Path) -> RunSecrets:
        """Read the keys in ``folder``.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        path = folder / KEYS
        if not path.is_file():
            raise CheckpointError(
                f"cannot resume: {path}, with the keys of the noise, is gone. Start a new run in "
                "another folder; what this one released adds to it"
            )
        with undamaged(path):
            values = json.loads(path.read_text(encoding="utf-8"))
            one_of("schema", values["schema"], (KEYS_SCHEMA,))
            keys = [bytes.fromhex(values[name]) for name in ("sampling", "noise", "identity")]
            if {SECRET_BYTES} != set(map(len, keys)):
                raise ValueError(f"each key has {SECRET_BYTES} bytes")
            flags = bool(values["seeded_sampling"]), bool(values["seeded_noise"])
            return cls(Secrets(keys[0], keys[1], *flags), keys[2])


def wipe(path: Path) -> None:
    """Overwrite a file in place, then delete it. A missing file is no error.

    Raises:
        OSError: the file cannot be overwritten.
    """
    with contextlib.suppress(FileNotFoundError):
        with path.open("r+b", buffering=0) as file:
            left = path.stat().st_size
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 20)))
            os.fsync(file.fileno())
        path.unlink()
        sync_folder(path.parent)


# The run folder: checked before the first private step; each file is written in one step.


CHECKPOINT, FIGURES = "checkpoint", "figures"
PLAN, MODEL = "plan.json", "model.safetensors"
STATEMENT, STATEMENT_TEXT = "statement.json", "statement.md"
METRICS, DIAGNOSTICS, RESULTS = "metrics.csv", "diagnostics.csv", "results.json"
# The contribution of each column to the output of an additive model.
SHAPES = "shapes.json"
# How to apply the model of a job to new records.
CARD = "model.json"
# A run in phases has one run folder for each phase until it ends; then a record of them replaces
# these.
PHASES, RECORD = "phases", "phases.json"
_OF_RESULTS = (METRICS, DIAGNOSTICS, RESULTS, SHAPES, TRANSCRIPT)
PAGES = ("report.html", "statement.html")
# A signature of the statement and of the files that it rests on.
ENVELOPE = "statement.intoto.json"
# Of a run that the book of a data set pays for: its reservation, and the book's answer at the end.
RESERVATION, PAID = "reservation.json", "ledger.json"
# With an audit of the run: it says nothing of one that takes its place.
_AUDITS = tuple(f"audit{later}.{kind}" for later in ("", "-later") for kind in ("json", "png"))
_TOLD = (STATEMENT, STATEMENT_TEXT, *PAGES, ENVELOPE, *_AUDITS)
WRITTEN = (PLAN, MODEL, *_OF_RESULTS, RECORD, PAID, *_TOLD)


@contextlib.contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """A context that names a file of a run if its content cannot be read."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, csv.Error) as error:
        raise CheckpointError(f"{path} is damaged ({error}): restore it from a copy") from error


def _half_written(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".part") and path.is_file()


def require_files(files: Mapping[str, str]) -> None:
    """Refuse texts that a caller cannot have in a run folder.

    Raises:
        ValueError: a name is a path, or a name that the run itself writes, or a text is none.
    """
    for name, text in files.items():
        if Path(name).name != name or name in (*WRITTEN, CHECKPOINT, FIGURES, PHASES):
            raise ValueError(f"files: {name!r} must be a plain name that no run writes itself")
        if not isinstance(text, str):
            raise ValueError(f"files: {name!r} must be a text, not {type(text).__name__}")


class RunFolder:
    """The folder in which a run leaves its results.

    Args:
        path: the folder; made when missing. Links are followed once, here: a link that is turned
            during a run leads it into no other run's folder.
    """

    def __init__(self, path: str | Path) -> None:
        # realpath: resolve() fails in a circle of links. A name without links stays as it was said.
        real = Path(os.path.realpath(path))
        self.path = Path(path) if real == Path(path).absolute() else real
        self.checkpoint = self.path / CHECKPOINT

    @property
    def finished(self) -> bool:
        """True if a run ended here: its results are whole and its keys are gone."""
        return (self.path / STATEMENT).is_file() and not (self.checkpoint / KEYS).exists()

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint file, readable or not."""
        return (self.checkpoint / STATE).exists()

    @property
    def _untouched(self) -> bool:
        # A run that died while it set the folder up leaves at most an empty checkpoint folder, the
        # half-written file that it was writing under another name, and its plan. With a reservation
        # beside the plan it may have been paid: then it is resumed.
        found = {path.name for path in self.path.iterdir() if not _half_written(path)} - {LOCK}
        return found <= {RESERVATION} or (
            found in ({CHECKPOINT}, {CHECKPOINT, RESERVATION}, {CHECKPOINT, PLAN})
            and self.checkpoint.is_dir()
            and all(path.name.startswith(".") for path in self.checkpoint.iterdir())
        )

    def require_free(self, overwrite: bool) -> None:
        """Refuse a folder that holds something, unless it may be overwritten.

        Raises:
            RunFolderExistsError: the message says what to do instead.
        """
        if any("\ud800" <= letter <= "\udfff" for letter in str(self.path)):
            raise ValueError(f"{self.path}: the name of a run folder must be UTF-8")
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderExistsError(f"{self.path} is a file; a run needs a folder")
        if self.path.is_dir() and not self._untouched and not overwrite:
            raise RunFolderExistsError(
                f"{self.path} is not empty: choose another folder, or train with resume (--resume) "
                f"to continue its run, with overwrite (--overwrite) to replace it{self._spent()}"
            )

    def _spent(self) -> str:
        """The cost of the interrupted run in this folder, which overwriting does not give back."""
        try:
            run = UnfinishedRun.load(self.path)
        except (OSError, ValueError, LookupError):
            if self.finished or not (self.path / PREPARED).is_file():
                return ""
            return f". What is in its {PREPARED} was released and is spent, whatever runs instead"
        if not run.released or run.spent is None:
            return ""
        return (
            f". {run.released:,} of its {run.plan.rounds:,} rounds may have been released: their "
            f"ε = {at_most(run.spent)} at δ = {at_most(run.plan.delta, '.3g')} is spent, whatever "
            "runs instead"
        )

    def begin(self, *, overwrite: bool, files: Mapping[str, str] | None = None) -> None:
        """Make an empty run folder.

        Args:
            files: texts that are written next, by name; one that is there already stays, so that
                what was released before is at no time gone from the disk.

        Raises:
            RunFolderExistsError: the folder is not empty and may not be overwritten.
            OSError: the folder cannot be written.
        """
        self.require_free(overwrite)
        if self.path.is_dir() and not self._untouched:
            self._clear(files or {})
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        for path in filter(_half_written, list(self.path.iterdir())):
            path.unlink()

    def _clear(self, files: Mapping[str, str]) -> None:
        # Only files that runs write: the folder may hold a person's own files too, such as the
        # job. Secrets go first.
        self.erase_phases()
        if any(self.checkpoint.glob("*")):  # the run that begins may need an empty one to go on
            self.erase_secrets()
        # Only jobs write cards: beside a run from Python it is somebody's own file.
        of_job = (PREPARED, CARD) if (self.path / "job.toml").is_file() else ()
        for path in (self.path / name for name in (*WRITTEN, *of_job)):
            kept = files.get(path.name)
            if path.is_file() and kept is not None and path.read_bytes() == kept.encode():
                continue
            if not path.is_dir():
                path.unlink(missing_ok=True)
        shutil.rmtree(self.path / FIGURES, ignore_errors=True)

    def reserve(self, size: int) -> None:
        """Prove that ``size`` bytes can be written in the folder, then free them.

        Raises:
            OSError: read-only folder or full disk; the message says how much space is needed.
        """
        probe = self.checkpoint / ".probe"
        block = bytes(1 << 20)
        try:
            try:
                with probe.open("wb") as file:
                    for _ in range(size // len(block) + 1):
                        file.write(block)
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            spent = self._spent()
            way = f"go on: forethought train --resume {self.path}" if spent else "begin anew"
            raise OSError(
                error.errno,
                f"the run folder {self.path} cannot take the {size / 2**20:.0f} MiB that a run "
                f"needs ({error.strerror}); no round was made{spent}. Mend that and {way}",
            ) from error

    def add(self, files: Mapping[str, str]) -> None:
        """Write texts of the caller that :func:`require_files` takes."""
        for name, text in files.items():
            replace_file(self.path / name, text.encode())

    def plan(self) -> Plan:
        """Read the plan of the run in this folder.

        Raises:
            CheckpointError: the folder has no plan.
        """
        path = self.path / PLAN
        if not path.is_file():
            raise CheckpointError(f"there is no run to resume in {self.path}: it has no {PLAN}")
        return Plan.load(path)

    def save_results(self, run: Any, state: Mapping[str, torch.Tensor]) -> Statement:
        """Write plan, model, metrics, transcript and, last, the statement; erase the secrets.

        Args:
            run: a finished Run. state: of its model, with whole tensors.

        Returns:
            The statement with the hashes of the model file and of the other files that it rests on.
        """
        self.add({PLAN: run.plan.to_json() + "\n"})  # the first one may be gone, or edited, by now
        weights = save(untied(state))
        replace_file(self.path / MODEL, weights)
        statement = run.statement.of_model(content_hash(weights))
        replace_file(self.path / METRICS, as_csv(run.history, PUBLIC).encode())
        if any(row.non_finite is not None for row in run.history):
            private = as_csv(run.history, ("round", *PRIVATE)).encode()
            replace_file(self.path / DIAGNOSTICS, private, mode=0o600)
        if run.transcript is not None:
            replace_file(self.path / TRANSCRIPT, run.transcript.to_json().encode())
        paths = [self.path / name for name in OF_RUN]
        present = {path.name: path.read_bytes() for path in paths if path.is_file()}
        statement = statement.resting_on(present)
        replace_file(self.path / STATEMENT_TEXT, statement.to_markdown().encode())
        replace_file(self.path / STATEMENT, (statement.to_json() + "\n").encode())
        self.erase_secrets()
        return statement

    def transcript(self) -> Transcript | None:
        """Read the transcript that :meth:`save_results` wrote; None if there is none.

        Raises:
            CheckpointError: the file is damaged or of another version.
        """
        path = self.path / TRANSCRIPT
        if not path.is_file():
            return None
        with undamaged(path):
            return Transcript.from_json(path.read_text(encoding="utf-8"))

    def prepared(self) -> str | None:
        """The text of what the run released before training; None if it released nothing so far.

        Raises:
            CheckpointError: the file is gone, so that it would be released again.
        """
        path = self.path / PREPARED
        if not path.is_file() and (self.finished or self.has_checkpoint):
            raise CheckpointError(
                f"{path} is gone, and what it holds would be released again, in no ε: restore it "
                "from a copy, or start a new run in another folder"
            )
        return Prepared.load(path).to_json() + "\n" if path.is_file() else None

    def load_model(self, model: torch.nn.Module) -> None:
        """Load the weights that :meth:`save_results` wrote into ``model``.

        Raises:
            CheckpointError: the file is missing, damaged, or of another model.
        """
        path = self.path / MODEL
        try:
            load_whole(model, load_file(path))
        except (SafetensorError, FileNotFoundError) as error:
            raise CheckpointError(
                f"{path}, the run's model, is gone or damaged ({error}): restore it from a "
                "copy, or train again in another folder"
            ) from error
        except RuntimeError as error:
            first_line = str(error).strip().partition("\n")[0]
            raise CheckpointError(f"{path} holds another model: {first_line}") from error

    def load_history(self) -> tuple[Metrics, ...]:
        """Read the history that :meth:`save_results` wrote."""
        public, private = self.path / METRICS, self.path / DIAGNOSTICS
        with undamaged(public):
            more = private.read_text(encoding="utf-8") if private.is_file() else None
            return tuple(from_csv(public.read_text(encoding="utf-8"), more))

    def erase_phases(self) -> None:
        """Delete the folders of a run's phases, the keys in them first."""
        phases = self.path / PHASES
        if phases.is_dir():
            for path in phases.iterdir():
                RunFolder(path).erase_secrets()
            shutil.rmtree(phases)

    def erase_secrets(self) -> None:
        """Overwrite the keys of noise and sampling, then delete the checkpoint.

        A journaling or copy-on-write file system may keep copies.
        """
        if not self.checkpoint.is_dir():
            return
        keys = self.checkpoint / KEYS
        if keys.is_file():
            # Renamed first, so that half-overwritten keys are never read as keys.
            keys.replace(self.checkpoint / f".{KEYS}.erased")
            sync_folder(self.checkpoint)
        for path in sorted(filter(Path.is_file, self.checkpoint.iterdir())):  # the keys first
            wipe(path)
        shutil.rmtree(self.checkpoint)  # a file server may have put folders of its own in it
        sync_folder(self.path)


def path_of(folder: RunFolder | None) -> Path | None:
    """The path of a run folder; None for a run without one."""
    return None if folder is None else folder.path


# Writing a run into its folder: keys first, then checkpoints, so that it can be continued exactly.


# The time between checkpoints: so many seconds, or so many times the time to write one, if longer.
SECONDS, SHARE = 10.0, 20.0
# The mark of an empty list of releases, which the first checkpoint, before any round, records.
_NOTHING: list[int | str] = [0, blake3().hexdigest()]


class Checkpointer:
    """Writes a run's checkpoints.

    Args:
        folder: the run folder.
        plan: the plan of the run.
        keys: the keys of this run.
        fixed: values kept with every checkpoint: ``identity`` (see :func:`identity`),
            ``environment`` (see :func:`environment`), ``watched`` (see :func:`watched`), and
            settings.
    """

    def __init__(
        self, folder: RunFolder, plan: Plan, keys: RunSecrets, fixed: Mapping[str, Any]
    ) -> None:
        self.folder, self._plan, self._keys = folder, plan, keys
        own, made = keys.secrets, {"context": "", "plan": plan.to_dict()}
        # With other keys, rounds after the checkpoint would be released again with other noise.
        held = own.sampling + own.noise + bytes([own.seeded_sampling, own.seeded_noise])
        named = {**fixed["identity"], KEYS: blake3(held, key=keys.identity).hexdigest()}
        self._fixed: dict[str, Any] = {**made, **fixed, "identity": named}
        self._due = 0.0
        self._released: ReleasedRounds | None = None

    def begin(self, first: Checkpoint, files: Mapping[str, str], *, overwrite: bool) -> None:
        """Set up the folder: plan, keys, a checkpoint before any round, an empty release list."""
        require_files(files)  # an earlier run is then still there
        # The plan first: a run that stops before its first round goes on with no other plan.
        texts = {PLAN: self._plan.to_json() + "\n", **files}
        self.folder.begin(overwrite=overwrite, files=texts)
        self.folder.add(texts)  # releases may be among them
        size = sum(t.numel() * t.element_size() for t in first.tensors.values())
        # Two copies, since the old file is kept until the new one is whole; two more for the
        # moments that an optimizer adds; one for the reported model.
        self.folder.reserve(5 * size + (1 << 20))
        self._keys.write(self.folder.checkpoint)
        self.write(first)
        self._released = ReleasedRounds(self.folder.checkpoint)

    @property
    def context(self) -> bytes:
        """The context that noise is bound to besides its round and sum.

        It is empty, or a hash of the facts of :func:`watched` at the last resume that found a
        change.
        """
        return bytes.fromhex(self._fixed["context"])

    def resume(self, saved: Checkpoint, known: int = 0) -> None:
        """Continue from a checkpoint of the same run; warn of changes that :func:`watched` finds.

        Args:
            known: number of rounds that its ledger knows were released, maybe by another copy.

        Raises:
            CheckpointError: the checkpoint is of another run, or rounds would be repeated where
                their rounding could differ.
        """
        require_same(saved.values["identity"], self._fixed["identity"])
        ReleasedRounds.require(self.folder.checkpoint, saved.values.get("released", _NOTHING))
        listed = max(ReleasedRounds.peek(self.folder.checkpoint), default=-1) + 1
        moved = differing(saved.values["environment"], self._fixed["environment"])
        if moved and max(listed, known) > saved.round:
            raise CheckpointError(
                f"cannot resume here: {'; '.join(moved.values())}. Rounds after the last "
                "checkpoint are repeated, and other rounding would release them again, at a cost "
                "in privacy. Set it back (threads: OMP_NUM_THREADS) and resume again"
            )
        before, now = saved.values["watched"], self._fixed["watched"]
        if known > listed:  # by another copy of the folder, whose sums this one cannot count
            require_same(before, now)
        self._fixed["context"] = saved.values["context"]
        if changed := sorted({*differing(before, now), *(now.keys() - before.keys())}):
            self._fixed["context"] = digest(now).rpartition(":")[2]
            warnings.warn(
                f"changed since the run began: {', '.join(changed)}. Rounds after the last "
                "checkpoint are released a second time, with noise of their own, and the statement "
                "accounts for it. To avoid that stop, set it back and resume again",
                stacklevel=2,
            )
        for place in (self.folder.checkpoint, self.folder.path):
            for path in filter(_half_written, list(place.iterdir())):
                path.unlink()
        self._released = ReleasedRounds(self.folder.checkpoint)
        self._schedule(0.0)

    def note(self, index: int, bound: bytes) -> int:
        """Note on disk that round ``index`` may be released; return how many releases it has."""
        return 1 if self._released is None else self._released.note(index, bound)

    def close(self) -> None:
        """Close the list of releases."""
        if self._released is not None:
            self._released.close()
            self._released = None

    @property
    def due(self) -> bool:
        """True if it is time for another checkpoint."""
        return time.monotonic() > self._due

    def write(self, state: Checkpoint) -> None:
        """Write a checkpoint now."""
        start = time.monotonic()
        state.values.update(self._fixed)
        if self._released is not None:
            state.values["released"] = self._released.mark()
        state.write(self.folder.checkpoint)
        self._schedule(time.monotonic() - start)

    def _schedule(self, took: float) -> None:
        self._due = time.monotonic() + max(SECONDS, SHARE * took)


def continued(folder: RunFolder, plan: Plan) -> tuple[Checkpoint, RunSecrets] | None:
    """The run of a plan that can be continued in a folder; it has the plan of plan.json.

    Returns:
        Checkpoint and keys; None if the run died before it began, with nothing released.

    Raises:
        CheckpointError: there is nothing to resume, the plan is another, or state was lost.
    """
    if not folder.checkpoint.is_dir():
        raise CheckpointError(f"there is no run to resume in {folder.path}")
    path = folder.path / PLAN
    saved = Checkpoint.read(folder.checkpoint) if folder.has_checkpoint else None
    if path.is_file() and _began_with({} if saved is None else saved.values, path) != plan:
        raise CheckpointError(
            "cannot resume: the plan changed since the run began. Go on with the plan that it "
            f"wrote to {path}, or start a new run in another folder"
        )
    released = ReleasedRounds.peek(folder.checkpoint)
    if saved is None:
        if released:
            raise CheckpointError(
                f"cannot resume: {len(released)} rounds were released, but "
                f"{folder.checkpoint / STATE} is gone. A new start would release them again with "
                "other noise. Restore the file, or start a new run in another folder; what this "
                "one released adds to it"
            )
        return None
    if not path.is_file():
        raise CheckpointError(f"cannot resume: {path} is gone, and it is the plan")
    return saved, RunSecrets.read(folder.checkpoint)


def _began_with(values: Mapping[str, Any], path: Path) -> Plan:
    """The plan that a run began with, which a checkpoint keeps too: plan.json may have changed."""
    return Plan.from_dict(values["plan"]) if "plan" in values else Plan.load(path)


def threads_of(folder: RunFolder) -> int | None:
    """The number of threads that the run in a folder began with; None without a checkpoint."""
    if not (folder.checkpoint / STATE).is_file():
        return None
    found = Checkpoint.read(folder.checkpoint).values.get("environment", {}).get("threads")
    return None if found is None else int(found)


# Models that were trained before: their earlier runs are named in a new statement.
#
# A model is recognised in two ways: among the models that this process trained, as the same object
# or by the hash of its weights; and among the run folders beside the new one, by its weights.
# Training elsewhere cannot be known: every Statement names the initial weights as an assumption.


# The largest number of neighbouring run folders that are read.
NEIGHBOURS = 1000

_objects: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
_weights: dict[bytes, str] = {}
_unended: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def trained_before(model: torch.nn.Module, folder: Path | None) -> tuple[Caveat, ...]:
    """The caveat for the Statement if the model, or a part of it, was trained before; else empty.

    Args:
        folder: the run folder that is about to be made; the folders beside it are read.
    """
    weights, parts = fingerprint(model.state_dict()), list(model.modules())
    runs = dict.fromkeys(_objects[part] for part in parts if part in _objects)
    # What became of a part may be the beginning of what became of the whole.
    apart = [one for one in runs if not any(one in other for other in runs if one != other)]
    known = "; and ".join(apart) or _weights.get(weights)
    # Itself, a part, or a copy.
    if any(one in parts or fingerprint(one.state_dict()) == weights for one in _unended):
        words = "in this process, by a run that did not end"
        known = words if known is None else f"{known}; then {words}"
    if known is None and folder is not None:
        known = _among_folders(model, folder)
    return () if known is None else (Caveat("trained-before", known),)


def _trained(model: torch.nn.Module) -> set[torch.nn.Module]:
    """The model, and the modules in it that hold trained weights, which other models may have."""
    held = {one for one in model.modules() if any(p.requires_grad for p in one.parameters(False))}
    return held | {model}


def released_into(model: torch.nn.Module) -> None:
    """Remember that a run has released rounds into the model; :func:`remember` ends it."""
    if model not in _unended:
        _unended.update(_trained(model))


def remember(model: torch.nn.Module, statement: Statement) -> None:
    """Remember in this process that a model was trained, by its modules and its final weights."""
    earlier = (one.detail for one in statement.caveats if one.code == "trained-before")
    words = "; then ".join([*earlier, f"in this process, {_spent(statement)}"])
    _weights[fingerprint(model.state_dict())] = words
    for part in _trained(model):
        _unended.discard(part)
        _objects[part] = words


def _spent(statement: Statement) -> str:
    if not statement.private:
        return "without a guarantee"
    return f"ε = {at_most(statement.epsilon.upper)} at δ = {at_most(statement.delta, '.3g')}"


def _among_folders(model: torch.nn.Module, folder: Path) -> str | None:
    present = model.state_dict()
    parent = folder.resolve().parent
    if not parent.is_dir() or shards_of(model) is not None:
        return None
    for path in sorted(parent.glob(f"*/{MODEL}"))[:NEIGHBOURS]:
        with contextlib.suppress(OSError, SafetensorError, RuntimeError):
            with safe_open(path, framework="pt") as file:
                same = set(file.keys()) == set(present) and all(
                    torch.equal(file.get_tensor(name), own.cpu()) for name, own in present.items()
                )
            if same:
                spent = "whose statement cannot be read"
                with contextlib.suppress(OSError, StatementError):
                    spent = _spent(Statement.load(path.parent / STATEMENT))
                return f"in {path.parent.name}, {spent}"
    return None


# The content of a run folder, as plain values for reports.


@dataclass(frozen=True)
class RunSummary:
    """A finished run.

    Args:
        folder: the run folder.
        plan: the plan that was run.
        statement: the guarantee that it gave.
        metrics: the rows of metrics.csv, as text.
        figures: the pictures in the folder.
        results: scores of the model on held-out records, where a job measured them.
        shapes: the contribution of each column, of an additive model.
        too_wide: a sentence for each declared range that was much wider than needed.
    """

    folder: Path
    plan: Plan
    statement: Statement
    metrics: tuple[Mapping[str, str], ...]
    figures: tuple[Path, ...]
    results: Results | None = None
    shapes: Shapes | None = None
    too_wide: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> RunSummary:
        """Read a finished run folder.

        Raises:
            ValueError: the folder holds no finished run.
        """
        if not (folder / "statement.json").is_file():
            raise ValueError(f"{folder} holds no finished run: there is no statement.json in it")
        path = folder / METRICS
        if not path.is_file():
            raise ValueError(f"{folder} is not complete: its metrics.csv is gone")
        with undamaged(path):
            from_csv(text := path.read_text(encoding="utf-8"), None)  # refuses what is no number
            metrics = tuple(csv.DictReader(text.splitlines()))
        plan, statement = Plan.load(folder / PLAN), Statement.load_of_run(folder / STATEMENT)
        figures = tuple(sorted((folder / FIGURES).glob("*.png")))
        results, shapes = Results.load(folder / RESULTS), None
        if (folder / SHAPES).is_file():
            from forethought.training.shapes import Shapes

            shapes = Shapes.load(folder / SHAPES)
        too_wide: tuple[str, ...] = ()
        measured = plan.preparation is not None and plan.preparation.measures
        card = folder / CARD
        if measured and card.is_file():  # a folder that is handed on may lack it
            from forethought.data.columns import Encoder

            with undamaged(card):
                encoder = parse(card.read_text(encoding="utf-8"))["encoder"]
                too_wide = Encoder.from_dict(encoder).too_wide()
        return cls(folder, plan, statement, metrics, figures, results, shapes, too_wide)

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {
            "folder": str(self.folder),
            "plan": self.plan.to_dict(),
            "statement": json.loads(self.statement.to_json()),
            "metrics": [dict(row) for row in self.metrics],
            "figures": [str(path) for path in self.figures],
            "results": None if self.results is None else json.loads(self.results.to_json()),
        }


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that was interrupted, as far as it came.

    Args:
        folder: the run folder.
        plan: the plan that it began with.
        released: number of rounds that may have been released.
        spent: certified upper end of the ε of these rounds at the plan's δ; None for a run in
            phases, whose plan states the cost of all of them.
        last: the public columns of the last row of its history.
        process: id of the process that is training in the folder; None: none that is seen here.
    """

    folder: Path
    plan: Plan
    released: int
    spent: float | None
    last: Mapping[str, float | int]
    process: int | None = None

    @classmethod
    def load(cls, folder: Path) -> UnfinishedRun:
        """Read the folder of a run that has not ended, without changing it.

        Raises:
            ValueError: the folder holds no such run, one without a checkpoint, or a damaged one.
        """
        run = RunFolder(folder)
        if not (folder / PLAN).is_file():
            raise ValueError(f"{folder} holds no run: it has no statement.json or plan.json")
        if not run.has_checkpoint:
            raise ValueError(f"the run in {folder} has no checkpoint: how far it came is not known")
        saved = Checkpoint.read(run.checkpoint).values
        plan, phases = _began_with(saved, folder / PLAN), saved.get("phases")
        times, spent = ReleasedRounds.peek(run.checkpoint), None
        if phases is None:
            history = saved["history"]
            released = max(times, default=-1) + 1
            done = _released(plan, times, released) if released else None
            spent = epsilon(done, plan.delta, plan.records_per_person).upper if done else 0.0
        else:
            history = [row for phase in phases for row in phase["history"]]
            ended = (phase for phase in phases if phase["accuracy"] is not None)
            released = sum(phase["rounds"]["count"] for phase in ended)
            if phases and phases[-1]["accuracy"] is None:
                current = RunFolder(folder / PHASES / f"{len(phases):02d}")
                begun = max(ReleasedRounds.peek(current.checkpoint), default=-1) + 1
                # A phase that has ended keeps no list.
                released += phases[-1]["rounds"]["count"] if current.finished else begun
        last = [Metrics(*row) for row in history[-1:]]
        public = without_none({name: getattr(one, name) for one in last for name in PUBLIC})
        return cls(folder, plan, released, spent, public, _training_in(folder))

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {
            "folder": str(self.folder),
            "finished": False,
            "plan": self.plan.to_dict(),
            "released": self.released,
            "spent": self.spent,
            "last": dict(self.last),
            "process": self.process,
        }


def _released(plan: Plan, times: Mapping[int, int], rounds: int) -> Mechanism:
    """The mechanism of the first rounds of a plan, with those that were released more than once."""
    before = len(plan.mechanism) - plan.rounds
    if max(times.values()) == 1:
        return plan.mechanism.first(before + rounds)
    done = Transcript()
    for index in range(rounds):
        one, often = plan.round(index), times.get(index, 1)
        done.append(one, one.noise_std, one.clip_norm, one.count_noise, one.strategy, often)
    found = done.mechanism(plan.mechanism.adjacency)
    return plan.mechanism.first(before) + found if before else found
