"""The run folder: checked before the first private step, filled file by file, each one whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from forethought.accounting.statement import Statement
from forethought.plans import Plan
from forethought.rounds.transcript import Transcript
from forethought.training.checkpoint import STATE, CheckpointError, replace_file, sync_folder
from forethought.training.keys import KEYS, wipe
from forethought.training.lock import LOCK
from forethought.training.metrics import PRIVATE, PUBLIC, Metrics, as_csv, from_csv

CHECKPOINT, FIGURES = "checkpoint", "figures"
PLAN, MODEL = "plan.json", "model.safetensors"
STATEMENT, STATEMENT_TEXT = "statement.json", "statement.md"
METRICS, DIAGNOSTICS, RESULTS = "metrics.csv", "diagnostics.csv", "results.json"
TRANSCRIPT, TRANSCRIPT_SCHEMA = "transcript.json", "forethought/transcript/1"
# A run in phases has a run folder for each, until it ends, and then a record of them.
PHASES, RECORD = "phases", "phases.json"
_OF_RESULTS = (METRICS, DIAGNOSTICS, RESULTS, TRANSCRIPT)
PAGES = ("report.html", "statement.html")
WRITTEN = (PLAN, MODEL, STATEMENT, STATEMENT_TEXT, *_OF_RESULTS, RECORD, *PAGES)


def _half_written(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".part") and path.is_file()


def model_hash(weights: bytes) -> str:
    """How a statement names a model file."""
    return f"sha256:{hashlib.sha256(weights).hexdigest()}"


class RunFolderExistsError(ValueError):
    """The folder holds something already: resume it, overwrite it, or choose another."""


class RunFolder:
    """Where a run leaves its results.

    Args:
        path: the folder; made when missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / CHECKPOINT

    @property
    def finished(self) -> bool:
        """Whether a run ended here: its results are whole and its keys are gone."""
        return (self.path / STATEMENT).is_file() and not (self.checkpoint / KEYS).exists()

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint file, readable or not."""
        return (self.checkpoint / STATE).exists()

    @property
    def _untouched(self) -> bool:
        # A run that died while it set the folder up leaves an empty checkpoint folder at most, and
        # what it was writing under another name.
        entries = [
            path for path in self.path.iterdir() if path.name != LOCK and not _half_written(path)
        ]
        return not entries or (
            entries == [self.checkpoint]
            and all(path.name.startswith(".") for path in self.checkpoint.iterdir())
        )

    def begin(self, *, overwrite: bool) -> None:
        """Make an empty run folder.

        Raises:
            RunFolderExistsError: not empty, and not to be overwritten.
            OSError: cannot be written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderExistsError(f"{self.path} is a file; a run needs a folder")
        if self.path.is_dir() and not self._untouched:
            if not overwrite:
                raise RunFolderExistsError(
                    f"{self.path} is not empty: continue its run with resume (--resume), replace "
                    "it with overwrite (--overwrite), or choose another folder"
                )
            self._clear()
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        for path in filter(_half_written, list(self.path.iterdir())):
            path.unlink()

    def _clear(self) -> None:
        # Only what runs write: the folder may hold a person's own files too. Secrets go first.
        self.erase_phases()
        self.erase_secrets()
        for name in WRITTEN:
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / FIGURES, ignore_errors=True)

    def reserve(self, size: int) -> None:
        """Prove that ``size`` bytes can be written here, then give them back.

        Raises:
            OSError: read-only folder or full disk; says how much is needed.
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
            raise OSError(
                error.errno,
                f"the run folder {self.path} cannot take the {size / 2**20:.0f} MiB that a run "
                f"needs ({error.strerror}); nothing private was read. Free space or choose "
                "another folder",
            ) from error

    def keep(self, files: Mapping[str, str]) -> None:
        """Write texts of the caller, such as the job, beside the results.

        Raises:
            ValueError: a name that is a path, or that the run itself writes.
        """
        for name, text in files.items():
            if Path(name).name != name or name in (*WRITTEN, CHECKPOINT, FIGURES, PHASES):
                raise ValueError(f"files: {name!r} must be a plain name that no run writes itself")
            replace_file(self.path / name, text.encode())

    def plan(self) -> Plan:
        """The plan of the run in here.

        Raises:
            CheckpointError: there is none.
        """
        path = self.path / PLAN
        if not path.is_file():
            raise CheckpointError(f"there is no run to resume in {self.path}: it has no {PLAN}")
        return Plan.load(path)

    def save_plan(self, plan: Plan) -> None:
        """Write ``plan.json``."""
        replace_file(self.path / PLAN, (plan.to_json() + "\n").encode())

    def save_results(
        self,
        state: Mapping[str, torch.Tensor],
        history: Sequence[Metrics],
        statement: Statement,
        transcript: Transcript | None,
    ) -> Statement:
        """Write model, metrics, transcript and statement; the statement last.

        Returns:
            The statement with the hash of the model file.
        """
        # Tied weights share memory, which the format has no way to say: each name gets its own.
        own = {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}
        weights = save(own)
        replace_file(self.path / MODEL, weights)
        statement = statement.of_model(model_hash(weights))
        replace_file(self.path / METRICS, as_csv(history, PUBLIC).encode())
        if any(row.non_finite is not None for row in history):
            private = as_csv(history, ("round", *PRIVATE)).encode()
            replace_file(self.path / DIAGNOSTICS, private, mode=0o600)
        if transcript is not None:
            text = json.dumps({"schema": TRANSCRIPT_SCHEMA, **transcript.to_values()})
            replace_file(self.path / TRANSCRIPT, (text + "\n").encode())
        replace_file(self.path / STATEMENT_TEXT, statement.to_markdown().encode())
        replace_file(self.path / STATEMENT, (statement.to_json() + "\n").encode())
        return statement

    def transcript(self) -> Transcript | None:
        """The transcript that :meth:`save_results` wrote."""
        path = self.path / TRANSCRIPT
        if not path.is_file():
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("schema", None) != TRANSCRIPT_SCHEMA:
            raise CheckpointError(f"{path} holds no transcript that this version can read")
        return Transcript.from_values(values)

    def load_model(self, model: torch.nn.Module) -> None:
        """Put the weights that :meth:`save_results` wrote into ``model``.

        Raises:
            CheckpointError: the file is gone, damaged, or of another model.
        """
        path = self.path / MODEL
        try:
            model.load_state_dict(load_file(path))
        except (SafetensorError, FileNotFoundError) as error:
            raise CheckpointError(
                f"{path} is gone or damaged ({error}): this run's model cannot be read back. "
                "Restore the file from a copy, or train again in another folder"
            ) from error
        except RuntimeError as error:
            first_line = str(error).strip().partition("\n")[0]
            raise CheckpointError(f"{path} holds another model: {first_line}") from error

    def load_history(self) -> tuple[Metrics, ...]:
        """The history that :meth:`save_results` wrote."""
        private = self.path / DIAGNOSTICS
        return tuple(
            from_csv(
                (self.path / METRICS).read_text(encoding="utf-8"),
                private.read_text(encoding="utf-8") if private.is_file() else None,
            )
        )

    def erase_phases(self) -> None:
        """Delete the folders of a run's phases, the keys in them first."""
        phases = self.path / PHASES
        if phases.is_dir():
            for path in phases.iterdir():
                RunFolder(path).erase_secrets()
            shutil.rmtree(phases)

    def erase_secrets(self) -> None:
        """Wipe the keys of noise and sampling, then delete the checkpoint.

        A journaling or copying file system may keep traces.
        """
        if not self.checkpoint.is_dir():
            return
        keys = self.checkpoint / KEYS
        if keys.is_file():
            # Renamed first, so that half-overwritten keys are never taken for keys.
            keys.replace(self.checkpoint / f".{KEYS}.erased")
            sync_folder(self.checkpoint)
        for path in sorted(self.checkpoint.iterdir()):  # the renamed keys first
            wipe(path)
        self.checkpoint.rmdir()
        sync_folder(self.path)
