"""Train a model under a Plan and hand it over with its Statement."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch

from forethought import gradients
from forethought.accounting import exact
from forethought.accounting.accountants import ACCOUNTANTS
from forethought.accounting.statement import About, Randomness, Statement, account
from forethought.gradients.batches import call
from forethought.gradients.boundary import shards_of, trained_here, turns
from forethought.gradients.clipped import outputs_in_front, placed
from forethought.gradients.sharded import load_whole, take_shards, whole_state
from forethought.ledger.book import unit_of
from forethought.rounds.contributions import (
    Loss,
    check_loss,
    default_loss,
    mixing_layers,
    of_each,
    undisturbed,
)
from forethought.rounds.preparation import Prepared, released, require_prepared, with_preparation
from forethought.rounds.private_sum import PrivateRounds, Team, present_team
from forethought.rounds.randomness import Indices, Secrets, Seeds
from forethought.rounds.records import Records, as_records, blank
from forethought.training import folder as folders
from forethought.training import metrics, optimizers
from forethought.training import records as fitting
from forethought.training.execution import (
    Execution,
    Interrupted,
    InterruptGuard,
    ShortForms,
    all_there,
    same_start,
    settled,
)
from forethought.training.folder import Checkpoint, Checkpointer, CheckpointError, RunFolder
from forethought.values.caveats import Caveat
from forethought.values.checks import function, instance, optional, require_payer
from forethought.values.mechanism import Augmentation, LocalUpdates
from forethought.values.plan import Paid, Payer, Plan, Transcript, marked, step_sizes
from forethought.values.use import linear_layer, trained_parameters

# The rounds of a Plan in order, and all state that changes between rounds.


# The shown loss of a batch uses at most so many of its records: one more forward pass per log row.
SHOWN_RECORDS = 256


def epsilon_at(statement: Statement, rounds: Sequence[int], before: int = 0) -> dict[int, float]:
    """Certified upper end of ε after each of the numbers of rounds, as the statement accounts it.

    Args:
        statement: of the whole plan. Its ε also bounds every prefix, as a part of the releases.
        before: number of releases before the first of these rounds, such as a preparation.

    Returns:
        Number of rounds → ε at the statement's δ.
    """
    total, mechanism = statement.epsilon.upper, statement.mechanism
    composed = ACCOUNTANTS[statement.accountant["kind"]].composed
    found = dict.fromkeys(rounds, math.inf if composed else total)
    if composed is None:
        return found
    noisy = sum(part.count for part in takewhile(lambda part: part.noise_multiplier, mechanism))
    # From the first round without noise on, there is no guarantee.
    if finite := [before + count for count in rounds if before + count <= noisy]:
        curve = exact.epsilon_curve(composed(mechanism), statement.delta, finite, statement.group)
        found |= {n - before: min(one.upper, total) for n, one in zip(finite, curve, strict=True)}
    last = len(mechanism) - before
    return found | ({last: total} if last in found else {})


class Loop:
    """Runs a plan's rounds.

    Args:
        task: the task with its model, records and held-out records.
        secrets: of sampling and noise.
        settings: ``log_every``, rounds between rows of the history (the last round always has a
            row); ``diagnostics``, True to measure private batches for the operator.
        statement: of the whole plan.
    """

    def __init__(
        self, task: Task, secrets: Secrets, settings: Mapping[str, Any], statement: Statement
    ) -> None:
        self._task, self.plan, self.model, self.done = task, task.plan, task.model, 0
        plan = task.plan
        parameters, self._shards = trained_here(task.model), shards_of(task.model)
        how: dict[str, Any] = {"batch_dims": task.batch_dims, "shards": self._shards}
        how |= {"micro_batch": task.execution.micro_batch, "team": task.team}
        self.private = PrivateRounds(plan.privacy, parameters, task.loss, secrets, **how)
        self.descent = optimizers.descent_of(plan, parameters)
        self.history: list[metrics.Metrics] = []
        self.average = optimizers.IterateAverage(plan.averaging, parameters, plan.rounds)
        self._diagnostics = bool(settings["diagnostics"])
        self._step_size = step_sizes(plan)
        every = int(settings["log_every"])
        logged = [*range(every, plan.rounds, every), plan.rounds]
        self._epsilon = epsilon_at(statement, logged, len(plan.mechanism) - plan.rounds)
        # This process's count since the last sum over processes, and the sum of all before.
        self._own_non_finite = torch.zeros((), dtype=torch.int64, device=self.private.layout.device)
        self._non_finite = 0
        self._slowed, self._last_accuracy = 1.0, 0.0  # of the schedule "drops"

    def rounds(self) -> Iterator[int]:
        """Run the rounds that are left; yield the number of rounds done after each."""
        while self.done < self.plan.rounds:
            self._round(self.done)
            self.done += 1
            yield self.done

    def _round(self, index: int) -> None:
        total = self.private.open(index)
        logged = index + 1 in self._epsilon
        loss = None
        if logged and self._diagnostics:
            with turns:
                self.private.seed_model(index)
                loss = self._batch_loss(total.indices)
        with self.descent.ahead(total.round):
            total.add(self.model, self._task.records)
        noised = total.release()
        step_size = self._step_size(index) * self._slowed
        self.descent.step(noised, step_size)
        self.average.update(index + 1)
        if self.plan.schedule.kind == "drops":
            self._slow_down(index + 1)
        if self._diagnostics:
            # NaN is not below infinity, so it counts too.
            self._own_non_finite += (total.norms < math.inf).logical_not_().sum()
        if logged:
            norms = self.private.team.gathered(total.norms) if self._diagnostics else total.norms
            self._log(index + 1, step_size, noised.round.clip_norm, loss, norms)

    def _slow_down(self, done: int) -> None:
        """Reduce the step size after an epoch in which accuracy on public records fell."""
        size, seen = self.plan.examples, self.plan.privacy.examples_before
        if self._task.held_out is None or seen(done) < size * (seen(done - 1) // size + 1):
            return
        accuracy = self._evaluated(self._task.held_out)[1] or 0.0
        if accuracy < self._last_accuracy:
            self._slowed *= self.plan.schedule.decay
        self._last_accuracy = accuracy

    def _evaluated(self, records: Records) -> tuple[float, float | None]:
        task = self._task
        weights, public = self.average.values, task.public_inputs
        return metrics.evaluate(self.model, weights, task.loss, records, task.batch_dims, public)

    def _batch_loss(self, indices: Indices) -> float | None:
        if len(indices) < 1 + bool(mixing_layers(self.model)):
            return None
        task = self._task
        inputs, targets = task.records.take(indices[:SHOWN_RECORDS])
        with undisturbed(self.model, task.loss), torch.no_grad():
            outputs = call(self.model, placed(inputs, task.batch_dims))
            outputs = outputs_in_front(outputs, task.batch_dims)
            return float(task.loss(outputs, targets).double().mean())

    def _log(
        self, done: int, step_size: float, bound: float, loss: float | None, norms: torch.Tensor
    ) -> None:
        held_out, clipped, non_finite = self._task.held_out, None, None
        test_loss, accuracy = (None, None) if held_out is None else self._evaluated(held_out)
        if self._diagnostics:
            clipped = float((norms > bound).double().mean()) if len(norms) else None
            self.add_up()
            non_finite = self._non_finite
        epoch = self.plan.privacy.examples_before(done) / self.plan.examples
        public = (done, epoch, step_size, bound, self._epsilon[done], test_loss, accuracy)
        self.history.append(metrics.Metrics(*public, loss, clipped, non_finite))

    def add_up(self) -> None:
        """Add the counts of all processes; all of them must call it together."""
        self.private.team.add_up(self._own_non_finite)
        self._non_finite += int(self._own_non_finite)
        self._own_non_finite.zero_()

    def checkpoint(self) -> Checkpoint:
        """The state that changes from round to round, as of the last :meth:`add_up`.

        For a sharded model, all processes call it together; the leading one gets whole tensors.
        """
        tensors, values = optimizers.optimizer_state(self.descent.optimizer)
        filtered, filter_values = self.descent.filter_state()
        bound = torch.tensor(list(b"".join(self.private.bound)), dtype=torch.uint8)
        average, keep = self.average.state(), self.private.team.leads
        if self._shards is not None:
            tensors, average = (self._shards.full_of(own, keep) for own in (tensors, average))
        owned = {
            "model": whole_state(self.model, keep),
            "average": average,
            "optimizer": tensors,
            "filter": filtered,
            "noise": {"bound": bound},
        }
        return Checkpoint(
            self.done,
            {f"{owner}/{k}": v for owner, held in owned.items() for k, v in held.items()},
            {
                "optimizer": values,
                "filter": filter_values,
                "history": [astuple(row) for row in self.history],
                "clip_norm": self.private.clip_norm,
                "transcript": self.private.transcript.to_values(),
                "non_finite": self._non_finite,
                "slowed": [self._slowed, self._last_accuracy],
            },
        )

    def restore(self, saved: Checkpoint) -> None:
        """Restore the state of :meth:`checkpoint`."""
        owners = ("model", "average", "optimizer", "filter", "noise")
        owned: dict[str, dict[str, torch.Tensor]] = {owner: {} for owner in owners}
        for key, tensor in saved.tensors.items():
            owner, _, name = key.partition("/")
            owned[owner][name] = tensor
        load_whole(self.model, owned["model"])
        if self._shards is not None:
            owned |= {kind: self._shards.own_of(owned[kind]) for kind in ("average", "optimizer")}
        self.average.restore(owned["average"])
        values, optimizer = saved.values, self.descent.optimizer
        optimizers.restore_optimizer(optimizer, owned["optimizer"], values["optimizer"])
        self.descent.restore_filter(owned["filter"], values.get("filter", {}))
        self.history = [metrics.Metrics(*row) for row in values["history"]]
        self.private.clip_norm = values["clip_norm"]
        self.private.transcript = Transcript.from_values(values["transcript"])
        bound = owned["noise"]["bound"].numpy().tobytes()
        self.private.bound = [bound[at : at + 32] for at in range(0, len(bound), 32)]
        self._non_finite = values["non_finite"]
        self._slowed, self._last_accuracy = values.get("slowed", (1.0, 0.0))
        self.done = saved.round


# Rows of the history when log_every is not given.
ROWS = 100

TIME_AND_MEMORY = Caveat("time-and-memory")
NOT_COVERED_TEST = Caveat("held-out-accuracy")
NOT_COVERED_DIAGNOSTICS = Caveat("diagnostics")
COINCIDE = Caveat(
    "stated", "some of the held-out records are equal to records that the model was trained on"
)


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        model: the given module, with the reported (averaged) weights.
        statement: the guarantee.
        history: measurements, oldest first; see :class:`~forethought.training.metrics.Metrics`.
        plan: the plan that was run.
        folder: the run folder, or None.
        transcript: the record of the releases.
    """

    model: torch.nn.Module
    statement: Statement
    history: tuple[metrics.Metrics, ...]
    plan: Plan
    folder: Path | None = None
    transcript: Transcript | None = field(default=None, compare=False, repr=False)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the reported model on the held-out records; None if it was not measured."""
        return self.history[-1].accuracy


@dataclass(frozen=True)
class Task:
    """One plan to run, with its data opened and checked; see :func:`train`."""

    model: torch.nn.Module
    records: Records
    held_out: Records | None
    plan: Plan
    loss: Loss
    folder: RunFolder | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)
    seeds: Seeds = field(default_factory=Seeds)
    diagnostics: bool = True
    resume: bool = False
    overwrite: bool = False
    progress: Callable[[metrics.Event], None] | None = None
    caveats: tuple[Caveat, ...] = ()
    batch_dims: gradients.BatchDims | None = None
    team: Team = field(default_factory=Team)
    public_inputs: Any = None
    prepared: Prepared | None = None
    about: About | None = None
    centring: AbstractContextManager[None] = field(default_factory=contextlib.nullcontext)
    paid: Paid | None = None  # only in the process that leads
    paid_before: int | None = None  # rounds of its reservation before this task; None: not a part

    def __post_init__(self) -> None:
        function("progress", self.progress)


def train(
    model: torch.nn.Module,
    data: object,
    plan: Plan | None = None,
    *,
    loss: Loss | None = None,
    batch_dims: gradients.BatchDims | None = None,
    test: object | None = None,
    public_inputs: Any = None,
    prepared: Prepared | None = None,
    augment: Augmentation | Sequence[str] | None = None,
    out: str | Path | None = None,
    files: Mapping[str, str] | None = None,
    about: About | None = None,
    ledger: Payer | None = None,
    execution: Execution | None = None,
    seeds: Seeds | None = None,
    diagnostics: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[metrics.Event], None] | None = None,
    **short: Unpack[ShortForms],
) -> Run:
    """Run a plan: every round releases a noised sum of clipped gradients and steps an optimizer.

    Only ``plan`` decides the guarantee. The model is changed in place; its initial weights
    are the caller's. Modules keep their training or evaluation mode.

    Args:
        model: any module whose layers treat the examples of a batch separately.
        data: ``(inputs, targets)``, arrays or tensors with one row a record, or a map-style torch
            Dataset of such pairs; exactly ``plan.examples`` records. A Dataset's own code must make
            record i from record i alone (no mixup): this is not checked. Or a
            :class:`forethought.data.Dataset`, whose caveats then reach the Statement.
        plan: from :func:`forethought.plan` or made by hand. None for a resumed run: the plan in
            the folder's plan.json.
        loss: ``loss(outputs, targets)`` → one value per example; of a torch criterion with a mean,
            each example's own value is used. Default: cross entropy for integer targets, squared
            error for floating-point ones.
        batch_dims: for a model whose inputs or outputs have the examples in another dimension than
            the first: the dimension (``forethought.gradients.BatchDims``). The Statement names it
            as an assumption, and every round recomputes one random example alone.
        test: held-out records, in the same forms. Default: those of a ``forethought.data.Dataset``.
        public_inputs: public records whose statistics batch normalisation uses in evaluation and
            keeps. Default: those of the evaluated records, at most 512 at a time.
        prepared: the release of :func:`forethought.prepare` for this plan, if the plan pays for
            one; ``data`` and ``test`` hold the prepared inputs. If only means for centring are
            needed, the run releases them itself.
        augment: altered copies of each image whose gradients are averaged before clipping, in place
            of the plan's: a `forethought.Augmentation`, or its kinds. No privacy cost.
        out: run folder: plan, statement, model, metrics, checkpoints. Until the run ends it holds
            the keys of the noise and is a secret. None writes no files.
        files: name → text to keep in the run folder, such as the job.
        about: data, purpose and responsible person, for the Statement.
        ledger: the book that pays, a `forethought.Ledger`: the whole plan is reserved before a
            record is read, and settled when the run ends.
        execution: device, micro-batches, intervals: settings that cannot change a guarantee.
        seeds: one of sampling (and dropout), one of the noise. Default: the operating system's
            entropy. With a noise seed there is no guarantee, with a sampling seed no
            amplification. A resumed run uses its own secrets.
        diagnostics: measure loss, clipped share and non-finite contributions on private batches,
            for the operator; the Statement then names them as not covered.
        resume: continue the run in ``out`` from its last checkpoint; the result is exactly that
            of an uninterrupted run. A finished run is read back.
        overwrite: replace a run in ``out``.
        progress: called after every round.
        short: ``device=``, ``micro_batch=``, ``checkpoint_every=``, ``log_every=`` of the
            execution, and ``seed=``, ``noise_seed=``, as single arguments.

    Returns:
        The run; its model has the averaged weights if the plan averages.

    Raises:
        ValueError, TypeError: an argument that does not fit, before any private step.
        OverBudgetError: the ledger's budget is too small for the plan (a ValueError).
        RunFolderExistsError: ``out`` is not empty.
        RunFolderBusyError: another process runs in ``out``.
        CheckpointError: nothing to resume, or another run (a ValueError).
        TranscriptError: the releases are not those that were accounted; nothing is written.
        TeamError: the arguments of several processes differ, or one process has ended (a
            ValueError).
        OSError: ``out`` cannot be written; before the first private step where that can be known.
        Interrupted: Ctrl-C or SIGTERM; the round was finished and a checkpoint written (a
            KeyboardInterrupt).
    """
    execution, seeds = settled(execution, seeds, **short)
    optional(instance, "about", about, kind=About)
    folder = folder_of(out, files, resume, overwrite)
    team = present_team()
    # Before anything is paid or released. It is a barrier too: no process still reads the folder.
    team.require_same(plan, "plan")
    alike = augment, prepared and prepared.to_json(), ledger is None, folder is None, resume
    team.require_same(alike, "augment=, prepared=, ledger=, out= or resume=")
    with contextlib.ExitStack() as held:
        if folder is not None:
            team.first(lambda: held.enter_context(folders.locked(folder.path)))
        if plan is None and resume and folder is not None:
            plan = folder.plan()  # plan.json is the plan
        plan = instance("plan", plan, Plan)
        if augment is not None:
            plan = plan.with_(augmentation=Augmentation.of(augment))
        fitting.require_answered(plan, prepared)
        paid = reserved(held, ledger, plan, folder, resume, overwrite, team)
        task = task_of(model, data, test, plan, loss, execution, batch_dims)
        fitting.warn_of_another_model(task.plan, model, data)
        same_start(model, team)
        earlier = team.first(
            lambda: () if resume else folders.trained_before(model, folders.path_of(folder))
        )
        run = run_plan(
            replace(
                task,
                folder=folder,
                files=files or {},
                seeds=seeds,
                diagnostics=diagnostics,
                resume=resume,
                overwrite=overwrite,
                progress=progress,
                caveats=(*task.caveats, *earlier),
                team=team,
                public_inputs=public_inputs,
                prepared=prepared,
                about=about,
                paid=paid,
            )
        )
    run = replace(run, model=model)
    folders.remember(run.model, run.statement)
    return run


def reserved(
    held: contextlib.ExitStack,
    ledger: Payer | None,
    plan: Plan,
    folder: RunFolder | None,
    resume: bool,
    overwrite: bool,
    team: Team,
) -> Paid | None:
    """The run's reservation, in the process that leads; None without a ledger or if finished."""
    require_payer(ledger)
    if ledger is None:
        if resume and folder is not None and (folder.path / folders.RESERVATION).is_file():
            raise CheckpointError(
                f"the run in {folder.path} is paid from a ledger: name it ([ledger], or ledger=)"
            )
        return None
    found: list[Paid] = []

    def begin() -> None:
        if folder is not None and not resume:
            folder.require_free(overwrite)
        if folder is None or not (resume and folder.finished):
            paying = ledger.paid(
                plan.mechanism,
                group=plan.records_per_person,
                unit=unit_of(plan),
                folder=folders.path_of(folder),
                resume=resume,
            )
            found.append(held.enter_context(paying))

    team.first(begin)
    return found[0] if found else None


def folder_of(
    out: str | Path | None, files: Mapping[str, str] | None, resume: bool, overwrite: bool
) -> RunFolder | None:
    """The run folder of a call, or None.

    Raises:
        ValueError: arguments that need a folder, or contradict each other.
    """
    if resume and (out is None or overwrite):
        raise ValueError("resume=True continues the run in out=: give out, without overwrite")
    if files and out is None:
        raise ValueError("files are kept in the run folder: give out=")
    return None if out is None else RunFolder(out)


def task_of(
    model: torch.nn.Module,
    data: object,
    test: object | None,
    plan: Plan,
    loss: Loss | None,
    execution: Execution,
    batch_dims: gradients.BatchDims | None = None,
) -> Task:
    """The task of a call: data sets opened, their caveats added to the plan, persons arranged."""
    loss = fitting.usual_loss(data) if loss is None else loss
    data, test, found = fitting.opened(data, test)
    own, plan = fitting.arranged(data, plan, loss), fitting.with_caveats(plan, found)
    return opened_task(own.wrapped(model), own.data, test, plan, own.loss, execution, batch_dims)


def opened_task(
    model: torch.nn.Module,
    data: object,
    test: object | None,
    plan: Plan,
    loss: Loss | None,
    execution: Execution,
    batch_dims: gradients.BatchDims | None = None,
) -> Task:
    """The task with model and records on the device, and all checked; nothing is released.

    Raises:
        ValueError, TypeError: a part that cannot be run.
    """
    records = fitting.placed_records(model, data, plan, execution.device)
    trained_parameters(model)  # refuses lazy layers, which the first pass would change
    if take_shards(model) is not None:
        fitting.require_sharded(plan)
    held_out = None if test is None else as_records(test, *fitting.form_of(model), "test")
    chosen = default_loss(blank(records)[1]) if loss is None else of_each(loss)
    weights = chosen.parameters() if isinstance(chosen, torch.nn.Module) else ()
    if {id(p) for p in weights if p.requires_grad} - {id(p) for p in model.parameters()}:
        raise ValueError(
            "the loss has weights of its own, which would not be trained: make it a part of the "
            "model, or freeze them (loss.requires_grad_(False))"
        )
    fitting.require_fit(model, chosen, records, dims=batch_dims)
    if held_out is not None:
        fitting.require_fit(model, chosen, held_out, "test", batch_dims)
    check_loss(model, chosen, records, batch_dims, plan.contribution, plan.augmentation)
    judged = held_out if plan.schedule.kind == "drops" else None
    if judged is not None and metrics.evaluate(model, {}, chosen, judged, batch_dims)[1] is None:
        raise ValueError("test= has no labels for the schedule 'drops': take another, as 'cosine'")
    # An unknown optimizer is reported before anything is released, means for centring included.
    optimizers.descent_of(plan, trained_here(model))
    if batch_dims is None and not isinstance(plan.contribution, LocalUpdates):
        fitting.require_reached(model, chosen, records)
    same = held_out is not None and fitting.coincide(fitting.as_rows(records, model), held_out)
    caveats = [*fitting.declared(plan, held_out), *([COINCIDE] if same else [])]
    if batch_dims is not None:
        where = f"inputs {batch_dims.inputs}, outputs {batch_dims.outputs}"
        caveats.append(Caveat("batch-dims", where))
    of_call: dict[str, Any] = {"execution": execution, "batch_dims": batch_dims}
    return Task(model, records, held_out, plan, chosen, caveats=tuple(caveats), **of_call)


def _centred(task: Task) -> Task:
    """The task with features centred by means that the plan pays for, released once.

    A continued run takes the means from its folder. The task is unchanged if its plan pays for no
    means, or if its inputs are prepared already.
    """
    asked, begun, paid, folder = task.plan.preparation, task.prepared, task.paid, task.folder
    if asked is None or (begun is not None and not (asked.measures and asked.becomes)):
        return task
    layer = linear_layer(task.model)
    fits = layer is not None and layer.bias is not None and layer.in_features == asked.features
    if not fits or not all(p.requires_grad for p in layer.parameters()):
        if begun is not None:
            require_prepared(task.plan, begun)  # raises: the means of these were not released
        return replace(task, plan=fitting.uncentred(task.plan))

    def text() -> str:
        if folder is not None and task.resume and (kept := folder.prepared()):
            return kept  # released once
        if begun is not None and begun.whole:
            return begun.to_json() + "\n"
        seeds = Seeds(None, task.seeds.noise)
        return released(task.plan, task.records, seeds, begun).to_json() + "\n"

    if paid is not None:
        if folder is not None and not (task.resume or paid.begun):
            # Before the mark: from there on this run is resumed, and not begun and paid for anew.
            texts = {folders.PLAN: task.plan.to_json() + "\n", **task.files}
            folder.begin(overwrite=task.overwrite, files=texts)
            (folder.path / fitting.PREPARED).unlink(missing_ok=True)  # an earlier run's
            folder.add(texts)
            task = replace(task, overwrite=True)
        paid.ahead(len(task.plan.mechanism) - task.plan.rounds)
    found = task.team.first(text)
    prepared = Prepared.from_json(found)
    require_prepared(task.plan, prepared)
    constants = prepared.constants
    return replace(
        task,
        records=fitting.CentredRecords(task.records, constants),
        held_out=None
        if task.held_out is None
        else fitting.CentredRecords(task.held_out, constants),
        prepared=prepared,
        centring=fitting.centred_weights(layer, constants),
        files={**task.files, fitting.PREPARED: found},
    )


def run_plan(task: Task) -> Run:
    """Run a task to its end; see :func:`train`."""
    plan, folder, model, team = task.plan, task.folder, task.model, task.team
    if folder is not None and team.first(lambda: task.resume and folder.finished):
        return read_back(folder, model, plan, team)
    if folder is not None:  # before anything is released, means for centring included
        optimizers.require_stored(plan.optimizer, trained_here(model).values())
    task = _centred(task)
    plan = task.plan
    if task.paid is not None and task.prepared is not None:
        task.paid.ahead(len(plan.mechanism) - plan.rounds)
    keys, saved, settings = team.first(lambda: _begun(task))

    def stated(plan: Plan, *more: Caveat) -> Statement:
        return account(
            plan,
            randomness=randomness(plan, keys.secrets, task.prepared),
            not_covered=(
                TIME_AND_MEMORY,
                *((NOT_COVERED_TEST,) if task.held_out is not None else ()),
                *((NOT_COVERED_DIAGNOSTICS,) if settings["diagnostics"] else ()),
                *(Caveat.from_dict(values) for values in settings["caveats"]),
                *more,
            ),
        )

    statement = team.first(lambda: stated(plan))
    with task.centring:
        loop = Loop(task, keys.secrets, settings, statement)
        checkpointer = _kept(task, loop, keys, saved, settings)
        if task.paid is not None:
            loop.private.note = marked(task.paid, loop.private.note, _before(task))
        if saved is not None:
            loop.restore(saved)
        try:
            with all_there(team, folders.path_of(folder)):
                _rounds(loop, checkpointer, task)
        finally:
            loop.descent.clear()
            if checkpointer is not None:
                checkpointer.close()
        loop.average.hand_over()
    rounds = team.first(lambda: loop.private.transcript)  # only the folder's process counts repeats
    transcript = with_preparation(task.prepared, rounds)
    transcript.require(statement.mechanism, once=True)
    if rounds.again:
        released = plan.remade(mechanism=rounds.mechanism(plan.mechanism.adjacency))
        more = Caveat("released-again", f"{rounds.again} of {len(rounds)}")
        statement = team.first(lambda: stated(released, more))
        shown = [row.round for row in loop.history]
        spent = epsilon_at(statement, shown, len(plan.mechanism) - plan.rounds)
        loop.history = [replace(row, epsilon=spent[row.round]) for row in loop.history]
    transcript.require(statement.mechanism)
    statement = replace(statement.of_run(transcript.releases()), about=task.about)
    statement = team.first(lambda: settled_in(task, statement))
    if task.public_inputs is not None:
        metrics.settle_statistics(model, task.public_inputs)
    run = Run(model, statement, tuple(loop.history), plan, folders.path_of(folder), transcript)
    return kept_in(folder, run, team)


def _before(task: Task) -> int:
    """The number of rounds of a task's reservation before its own rounds of training."""
    if task.paid_before is not None:
        return task.paid_before
    paid = task.plan if task.paid is None else task.paid
    return len(paid.mechanism) - task.plan.rounds


def settled_in(task: Task, statement: Statement, rounds: int | None = None) -> Statement:
    """The statement of a run that a book paid for: settled, with the book's evidence.

    Args:
        rounds: number of rounds that were released; None: all that were reserved.
    """
    if task.paid is None or task.paid_before is not None:
        return statement
    return in_the_book(task.paid, statement, task.folder, rounds)


def in_the_book(
    paid: Paid, statement: Statement, folder: RunFolder | None, rounds: int | None = None
) -> Statement:
    """Settle a run; return its statement with the book's words, and keep the evidence."""
    found, words = paid.settle(rounds)
    if folder is not None:
        folders.replace_file(folder.path / folders.PAID, found.encode())
    return replace(statement, caveats=(*statement.caveats, Caveat("in-the-book", words)))


def _begun(task: Task) -> tuple[folders.RunSecrets, Checkpoint | None, dict[str, Any]]:
    """Keys, checkpoint and settings of the continued run; of a new run without a checkpoint."""
    keys = folders.RunSecrets.draw(task.seeds)
    # A continued run keeps its own, even if the call has others.
    settings = {
        "log_every": task.execution.log_every or max(1, round(task.plan.rounds / ROWS)),
        "diagnostics": task.diagnostics,
        "caveats": [caveat.to_dict() for caveat in task.caveats],
    }
    if task.resume and task.folder is not None:
        begun = folders.continued(task.folder, task.plan)
        if begun is not None:
            saved, keys = begun
            return keys, saved, {name: saved.values[name] for name in settings}
        # From its first mark on, the run that a reservation is of has a checkpoint.
        if task.paid is not None and task.paid.begun > _before(task):
            raise CheckpointError(
                f"the run in {task.folder.path} has no checkpoint, and by its ledger a copy of it "
                "released rounds: begin a new run in another folder, which is paid for anew"
            )
    return keys, None, settings


def _kept(
    task: Task,
    loop: Loop,
    keys: folders.RunSecrets,
    saved: Checkpoint | None,
    settings: Mapping[str, Any],
) -> Checkpointer | None:
    """The checkpointer, in the process that leads; all processes check that they agree."""
    team, folder = task.team, task.folder
    if folder is None and team.size == 1:
        return None
    named = folders.identity(
        task.model, task.records, task.held_out, task.loss, keys.identity, task.batch_dims
    )
    public = folders.fingerprint(task.public_inputs)
    team.require_same((named, public), "data, model, loss, batch_dims or public_inputs")
    if folder is None:
        return None
    fixed = {
        "identity": named,
        "environment": folders.environment(task.model, task.execution.micro_batch, team.size),
        "watched": folders.watched(task.model, task.loss, keys.identity),
    }
    checkpointer = Checkpointer(folder, task.plan, keys, {**fixed, **settings})

    # A checkpoint of shards is made by all processes together.
    makes = saved is None and (team.leads or shards_of(task.model) is not None)
    first = loop.checkpoint() if makes else None

    def begin() -> bytes:
        if first is not None:
            checkpointer.begin(first, task.files, overwrite=task.overwrite or task.resume)
        elif saved is not None:
            checkpointer.resume(saved, task.paid.known - _before(task) if task.paid else 0)
        return checkpointer.context

    loop.private.context = team.first(begin)
    if not team.leads:
        return None
    loop.private.note = checkpointer.note
    return checkpointer


def randomness(plan: Plan, secrets: Secrets, prepared: Prepared | None = None) -> Randomness:
    """The source of the random numbers, for the Statement."""
    seeded = secrets.seeded_noise or (prepared is not None and prepared.seeded)
    return Randomness(seeded, secrets.seeded_sampling, plan.noise == "grid")


def _rounds(loop: Loop, checkpointer: Checkpointer | None, task: Task) -> None:
    total, every, team = loop.plan.rounds, task.execution.checkpoint_every, task.team
    with loop.private, InterruptGuard() as guard:
        for number, done in enumerate(loop.rounds()):
            if not number:  # the modules stay the same
                folders.released_into(task.model)
            if task.progress is not None and team.leads:
                task.progress(event(done, total, loop.history))
            if done == total:
                break
            due = False
            if checkpointer is not None:
                due = checkpointer.due if every is None else done % every == 0
            due, stop = team.any(due, guard.requested)
            if due or stop:
                loop.add_up()
                if checkpointer is not None or shards_of(task.model) is not None:
                    state = loop.checkpoint()
                    if checkpointer is not None:
                        checkpointer.write(state)
            if stop:
                raise Interrupted(folders.path_of(task.folder), done)


def event(done: int, rounds: int, history: Sequence[metrics.Metrics]) -> metrics.Event:
    """The event of round ``done``, with the values of the last row of the history."""
    if not history:
        return metrics.Event(done, rounds)
    names = [part.name for part in fields(metrics.Event)][2:]
    return metrics.Event(done, rounds, *(getattr(history[-1], name) for name in names))


def read_back(folder: RunFolder, model: torch.nn.Module, plan: Plan | None, team: Team) -> Run:
    """The finished run in a folder, with its weights in ``model``.

    Raises:
        CheckpointError: ``plan`` is given, and is not that of the run; or files are damaged.
    """
    stored = folder.plan()
    if plan is not None and stored != plan:
        raise CheckpointError(f"cannot resume: the plan is not that of the run in {folder.path}")
    team.first(folder.erase_secrets)  # a kill during the end of the run may have left them
    folder.load_model(model)
    statement = Statement.load(folder.path / folders.STATEMENT)
    return Run(model, statement, folder.load_history(), stored, folder.path, folder.transcript())


_Run = TypeVar("_Run", bound=Run)


def kept_in(folder: RunFolder | None, run: _Run, team: Team) -> _Run:
    """A run whose plan and results are written into its folder, if it has one."""
    if folder is None:
        return run
    state = whole_state(run.model, team.leads)
    return replace(run, statement=team.first(lambda: folder.save_results(run, state)))
