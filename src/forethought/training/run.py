"""Train a model under a Plan and hand it over with its Statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from forethought import gradients
from forethought.accounting.statement import Statement, account
from forethought.caveats import Caveat
from forethought.mechanism import whole
from forethought.plans import Plan
from forethought.rounds.losses import Loss, check_loss, default_loss
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets
from forethought.rounds.records import Records, as_records
from forethought.training.checkpoint import Checkpoint, CheckpointError, ReleasedRounds
from forethought.training.datasets import opened, with_caveats
from forethought.training.descent import Descent
from forethought.training.folder import MODEL, PLAN, STATEMENT, RunFolder
from forethought.training.identity import (
    environment,
    identity,
    require_same,
    require_same_environment,
)
from forethought.training.interruption import Interrupted, InterruptGuard
from forethought.training.loop import Loop
from forethought.training.metrics import Event, Metrics, event
from forethought.training.optimizers import make_optimizer

# Rows of the history when log_every is not given.
ROWS = 100
# Without checkpoint_every: seconds between checkpoints, or so many times what writing one takes.
CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 10.0, 20.0

TIME_AND_MEMORY = Caveat("time-and-memory")
NOT_COVERED_TEST = Caveat("held-out-accuracy")
NOT_COVERED_DIAGNOSTICS = Caveat("diagnostics")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        model: the module that was given, with the reported (averaged) weights.
        statement: what was guaranteed.
        history: measurements, oldest first; see :class:`~forethought.training.metrics.Metrics`.
        plan: what was run.
        folder: the run folder, or None.
    """

    model: torch.nn.Module
    statement: Statement
    history: tuple[Metrics, ...]
    plan: Plan
    folder: Path | None = None

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the reported model on the held-out records, where it was measured."""
        return self.history[-1].accuracy


def train(
    model: torch.nn.Module,
    data: object,
    plan: Plan,
    *,
    loss: Loss | None = None,
    test: object | None = None,
    out: str | Path | None = None,
    files: Mapping[str, str] | None = None,
    micro_batch: int | None = None,
    device: str | torch.device | None = None,
    seed: int | None = None,
    noise_seed: int | None = None,
    checkpoint_every: int | None = None,
    log_every: int | None = None,
    diagnostics: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[Event], None] | None = None,
) -> Run:
    """Run a plan: every round releases a noised sum of clipped gradients and steps an optimizer.

    Only ``plan`` decides what is guaranteed. The model is changed in place; its initial weights
    are the caller's. Modules keep their training or evaluation mode.

    Args:
        model: any module whose layers treat the examples of a batch separately.
        data: ``(inputs, targets)``, arrays or tensors with one row a record, or a map-style torch
            Dataset of such pairs; exactly ``plan.examples`` records. Or a
            :class:`forethought.data.Dataset`, whose caveats then reach the Statement.
        plan: from :func:`forethought.plan` or made by hand.
        loss: ``loss(outputs, targets)`` → one value per example. Default: cross entropy for whole
            targets, squared error for floating-point ones.
        test: held-out records, in the same forms. Default: those of a ``forethought.data.Dataset``.
        out: run folder: plan, statement, model, metrics, and checkpoints to resume from. The
            checkpoint holds the keys of the noise and is a secret until the run ends, when it is
            deleted. None keeps nothing.
        files: name → text to keep in the run folder from the start, such as the job.
        micro_batch: examples whose gradients are held at once. Bounds memory, changes nothing else.
        device: where to train; default: where the model is.
        seed, noise_seed: of sampling (and dropout), and of the noise. Default: the operating
            system's entropy. The Statement says when one was given, since whoever knows it can
            undo the protection. When resuming, the secrets of the run itself are used.
        checkpoint_every: rounds between checkpoints; default: by time, about every 10 s.
        log_every: rounds between rows of the history; default: about 100 rows.
        diagnostics: measure loss, clipped share and non-finite contributions on private batches,
            for the operator; the Statement then names them as not covered.
        resume: continue the run in ``out`` from its last checkpoint; the result is exactly that
            of an uninterrupted run. A finished run is read back.
        overwrite: replace a run in ``out``.
        progress: called after every round.

    Returns:
        The run, its model carrying the averaged weights if the plan averages.

    Raises:
        ValueError, TypeError: an argument that does not fit, before any private step.
        RunFolderExistsError: ``out`` is not empty (a ValueError).
        CheckpointError: nothing to resume, or not the same run (a ValueError).
        OSError: ``out`` cannot be written; before the first private step where that can be known.
        Interrupted: Ctrl-C; the round was finished and a checkpoint written (a KeyboardInterrupt).
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a forethought.Plan, not {type(plan).__name__}")
    data, test, found = opened(data, test)
    plan = with_caveats(plan, found)
    if resume and (out is None or overwrite):
        raise ValueError("resume=True continues the run in out=: give out, without overwrite")
    for name, value in (
        ("micro_batch", micro_batch),
        ("checkpoint_every", checkpoint_every),
        ("log_every", log_every),
    ):
        if value is not None:
            whole(name, value)
    if files and out is None:
        raise ValueError("files are kept in the run folder: give out=")
    gradients.check_model(model)
    if device is not None:
        model.to(device)
    records, held_out = _records(model, data, test, plan)
    chosen_loss = default_loss(records.take(np.arange(1))[1]) if loss is None else loss
    check_loss(model, chosen_loss, records)
    folder = None if out is None else RunFolder(out)
    if resume and folder is not None and folder.finished:
        return _read_back(folder, model, plan)

    saved = _saved(folder, plan) if resume and folder is not None else None
    if saved is None:
        secrets = Secrets.draw(seed, noise_seed)
        log_every = log_every or max(1, round(plan.rounds / ROWS))
    else:
        secrets = Secrets(
            bytes.fromhex(saved.values["sampling_secret"]),
            bytes.fromhex(saved.values["noise_secret"]),
            saved.values["seeded"],
        )
        log_every = int(saved.values["log_every"])
        diagnostics = bool(saved.values["diagnostics"])
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    descent = Descent(parameters, make_optimizer(plan.optimizer, parameters.values()))
    private = PrivateRounds(plan.privacy, parameters, chosen_loss, secrets, micro_batch=micro_batch)
    # Before the first round: a mechanism that no theorem covers is refused here.
    statement = account(
        plan,
        seeded=secrets.seeded,
        not_covered=(
            TIME_AND_MEMORY,
            *((NOT_COVERED_TEST,) if held_out is not None else ()),
            *((NOT_COVERED_DIAGNOSTICS,) if diagnostics else ()),
        ),
    )
    epsilon = statement.epsilon.upper
    loop = Loop(
        plan,
        records,
        held_out,
        model,
        private,
        descent,
        chosen_loss,
        log_every,
        diagnostics,
        epsilon,
    )
    keeper = None
    if folder is not None:
        keeper = _Keeper(folder, loop, checkpoint_every)
        keeper.fixed = {
            "sampling_secret": secrets.sampling.hex(),
            "noise_secret": secrets.noise.hex(),
            "seeded": secrets.seeded,
            "log_every": log_every,
            "diagnostics": diagnostics,
            "identity": identity(model, records, held_out, plan, chosen_loss, secrets.noise),
            "environment": environment(model, micro_batch),
        }
        if saved is None:
            keeper.begin(plan, files or {}, overwrite=overwrite or resume)
        else:
            keeper.resume(saved)
    _run(loop, keeper, progress)
    private.transcript.require(statement.mechanism)

    history = tuple(loop.history)
    with torch.no_grad():
        for name, weights in loop.average.values.items():
            parameters[name].copy_(weights)
    if folder is not None:
        folder.save_results(model.state_dict(), history, statement)
        folder.erase_secrets()
    return Run(model, statement, history, plan, None if folder is None else folder.path)


def _records(
    model: torch.nn.Module, data: object, test: object | None, plan: Plan
) -> tuple[Records, Records | None]:
    first = next(p for p in model.parameters() if p.requires_grad)
    records = as_records(data, first.dtype, first.device)
    if len(records) != plan.examples:
        raise ValueError(
            f"the plan is for {plan.examples} examples, the data has {len(records)}: the "
            "guarantee depends on it. Make the plan with examples=len(data)"
        )
    held_out = None if test is None else as_records(test, first.dtype, first.device, "test")
    return records, held_out


def _saved(folder: RunFolder, plan: Plan) -> Checkpoint | None:
    """The checkpoint to resume from; None when the run died before it began."""
    try:
        return Checkpoint.read(folder.checkpoint)
    except CheckpointError:
        # The first checkpoint precedes the first round: without one nothing was released, and
        # what there is comes from a run that died while it set the folder up.
        begun = folder.has_checkpoint or not folder.checkpoint.is_dir()
        path = folder.path / PLAN
        if begun or (path.is_file() and Plan.load(path) != plan):
            raise
        return None


def _read_back(folder: RunFolder, model: torch.nn.Module, plan: Plan) -> Run:
    if Plan.load(folder.path / PLAN) != plan:
        raise CheckpointError(f"cannot resume: the plan is not that of the run in {folder.path}")
    folder.erase_secrets()  # what a kill during the end of the run may have left
    model.load_state_dict(load_file(folder.path / MODEL))
    statement = Statement.load(folder.path / STATEMENT)
    return Run(model, statement, folder.load_history(), plan, folder.path)


def _run(loop: Loop, keeper: _Keeper | None, progress: Callable[[Event], None] | None) -> None:
    total = loop.plan.rounds
    if keeper is not None:
        released = keeper.released
        loop.private.before = lambda index: released.advance(index + 1)
    try:
        with loop.private, InterruptGuard() as guard:
            for done in loop.rounds():
                if progress is not None:
                    progress(event(done, total, loop.history[-1] if loop.history else None))
                if done == total:
                    break
                if keeper is not None:
                    keeper.after_round()
                if guard.requested:
                    if keeper is not None:
                        keeper.write()
                    raise Interrupted(None if keeper is None else keeper.folder.path, done)
    finally:
        loop.descent.clear()
        if keeper is not None:
            keeper.released.close()


class _Keeper:
    """Writes a loop's checkpoints into its run folder."""

    released: ReleasedRounds

    def __init__(self, folder: RunFolder, loop: Loop, every: int | None) -> None:
        self.folder, self._loop, self._every = folder, loop, every
        self.fixed: dict[str, Any] = {}
        self._due = 0.0

    def begin(self, plan: Plan, files: Mapping[str, str], *, overwrite: bool) -> None:
        """Set up the folder and write the checkpoint of no rounds; nothing private yet."""
        self.folder.begin(overwrite=overwrite)
        size = sum(t.numel() * t.element_size() for t in self._loop.model.state_dict().values())
        # Weights, average, two optimizer moments: twice, since the old file is kept until the
        # new one is whole; and the reported model.
        self.folder.reserve(9 * size + (1 << 20))
        self.folder.keep(files)
        self.folder.save_plan(plan)
        self.write()
        self.released = ReleasedRounds(self.folder.checkpoint)

    def resume(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint of the same run."""
        require_same(saved.values["identity"], self.fixed["identity"])
        self.released = ReleasedRounds(self.folder.checkpoint)
        if self.released.value > saved.round:
            require_same_environment(saved.values["environment"], self.fixed["environment"])
        self._loop.restore(saved)
        self._schedule(0.0)

    def after_round(self) -> None:
        """Write a checkpoint if one is due."""
        if self._every is not None:
            if self._loop.done % self._every == 0:
                self.write()
        elif time.monotonic() > self._due:
            self.write()

    def write(self) -> None:
        """Write a checkpoint now."""
        start = time.monotonic()
        checkpoint = self._loop.checkpoint()
        checkpoint.values.update(self.fixed)
        checkpoint.write(self.folder.checkpoint)
        self._schedule(time.monotonic() - start)

    def _schedule(self, took: float) -> None:
        self._due = time.monotonic() + max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * took)
