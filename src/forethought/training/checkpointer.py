"""Keeps a run in its folder: keys first, then checkpoints, so that it can be continued exactly."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from blake3 import blake3

from forethought.plans import Plan
from forethought.serialisation import digest
from forethought.training.checkpoint import (
    STATE,
    Checkpoint,
    CheckpointError,
    ReleasedRounds,
)
from forethought.training.folder import PLAN, RunFolder
from forethought.training.identity import require_same, require_same_environment
from forethought.training.keys import Keys

# Without an interval: seconds between checkpoints, or so many times what writing one takes.
SECONDS, SHARE = 10.0, 20.0
# What the first checkpoint, before any round, has seen of the list of releases.
_NOTHING: list[int | str] = [0, blake3().hexdigest()]


class Checkpointer:
    """Writes a run's checkpoints.

    Args:
        folder: the run folder. plan: what is run.
        keys: of this run.
        identity: what makes it this run; see :func:`forethought.training.identity.identity`.
        environment: what can move its rounding.
        watched: what else its sums may depend on; see :mod:`forethought.training.identity`.
        settings: more that is kept with every checkpoint.
    """

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        keys: Keys,
        identity: Mapping[str, str],
        environment: Mapping[str, str],
        watched: Mapping[str, str],
        settings: Mapping[str, Any],
    ) -> None:
        self.folder, self._plan, self._keys = folder, plan, keys
        self._identity, self._environment = identity, environment
        self._fixed = {
            "identity": identity,
            "environment": environment,
            "watched": dict(watched),
            "context": "",
            **settings,
        }
        self._due = 0.0
        self._released: ReleasedRounds | None = None

    def begin(
        self, state: Callable[[], Checkpoint], files: Mapping[str, str], *, overwrite: bool
    ) -> None:
        """Set up the folder: plan, keys, checkpoint of no rounds, and no releases."""
        self.folder.begin(overwrite=overwrite)
        first = state()
        size = sum(t.numel() * t.element_size() for t in first.tensors.values())
        # Twice, since the old file is kept until the new one is whole; optimizers make state of
        # two more moments; and the reported model.
        self.folder.reserve(5 * size + (1 << 20))
        self.folder.keep(files)
        self.folder.save_plan(self._plan)
        self._keys.write(self.folder.checkpoint)
        self.write(first)
        self._released = ReleasedRounds(self.folder.checkpoint)

    @property
    def context(self) -> bytes:
        """What noise is bound to besides its round and sum: the last that was seen to change."""
        return bytes.fromhex(self._fixed["context"])

    def resume(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint, if it is of the same run; warn of what may have changed.

        Raises:
            CheckpointError: it is not, or rounds would be repeated under other rounding.
        """
        require_same(saved.values["identity"], self._identity)
        ReleasedRounds.require(self.folder.checkpoint, saved.values.get("released", _NOTHING))
        if max(ReleasedRounds.peek(self.folder.checkpoint), default=-1) >= saved.round:
            require_same_environment(saved.values["environment"], self._environment)
        context, before = saved.values["context"], saved.values["watched"]
        changed = [name for name, now in self._fixed["watched"].items() if before[name] != now]
        if changed:
            context = digest(self._fixed["watched"]).rpartition(":")[2]
            warnings.warn(
                f"changed since the run began: {', '.join(changed)}. Rounds after the last "
                "checkpoint are released a second time, with noise of their own, and the statement "
                "accounts for it. To avoid that stop, set it back and resume again",
                stacklevel=2,
            )
        self._fixed["context"] = context
        self._released = ReleasedRounds(self.folder.checkpoint)
        self._schedule(0.0)

    def note(self, index: int, bound: bytes) -> int:
        """Note on disk that round ``index`` may be released; how many releases of it there are."""
        return 1 if self._released is None else self._released.note(index, bound)

    def close(self) -> None:
        """Let go of the files."""
        if self._released is not None:
            self._released.close()
            self._released = None

    @property
    def due(self) -> bool:
        """Whether it is time for another checkpoint."""
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


def continued(folder: RunFolder, plan: Plan | None) -> tuple[Plan, Checkpoint, Keys] | None:
    """What there is to continue in a run folder; plan.json is the plan.

    Args:
        plan: that of the caller, which must be the same; None takes the folder's.

    Returns:
        Plan, checkpoint and keys; None where a run died before it began, with nothing released.

    Raises:
        CheckpointError: nothing to resume, another plan, or state that was lost.
    """
    if not folder.checkpoint.is_dir():
        raise CheckpointError(f"there is no run to resume in {folder.path}")
    stored = stored_plan(folder)
    if stored is not None and plan is not None and stored != plan:
        raise CheckpointError(
            "cannot resume: the plan changed since the run began; the plan is that of "
            f"{folder.path / PLAN}. Leave plan out, or start a new run in another folder"
        )
    released = ReleasedRounds.peek(folder.checkpoint)
    if not (folder.checkpoint / STATE).is_file():
        if released:
            raise CheckpointError(
                f"cannot resume: {len(released)} rounds were released, but "
                f"{folder.checkpoint / STATE} is gone. A new start would release them again with "
                "other noise. Restore the file, or start a new run in another folder; what this "
                "one released adds to it"
            )
        return None
    if stored is None:
        raise CheckpointError(f"cannot resume: {folder.path / PLAN} is gone, and it is the plan")
    saved = Checkpoint.read(folder.checkpoint)
    return stored, saved, Keys.read(folder.checkpoint)


def threads_of(folder: RunFolder) -> int | None:
    """How many threads the run in a folder began with, where it can be continued."""
    if not (folder.checkpoint / STATE).is_file():
        return None
    found = Checkpoint.read(folder.checkpoint).values.get("environment", {}).get("threads")
    return None if found is None else int(found)


def stored_plan(folder: RunFolder) -> Plan | None:
    """The plan that a run in the folder began with, if one did."""
    if (folder.checkpoint / STATE).is_file():
        # A run in phases, which may replace plan.json at its end by what it became.
        values = Checkpoint.read(folder.checkpoint).values
        if "plan" in values:
            return Plan.from_dict(values["plan"])
    path = folder.path / PLAN
    return Plan.load(path) if path.is_file() else None
