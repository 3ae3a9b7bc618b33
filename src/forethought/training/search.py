"""Several runs under one guarantee: a private random search, and phases up to an accuracy.

**Formal guarantee.** A search makes a random number of private trials and shows only the best. A
trial draws a candidate by a public rule, trains, and scores its model. Theorems 2 and 6 of
Papernot and Steinke 2022 bound the cost of the best of K trials by the cost of one trial, if K is
drawn from the stated distribution before the first trial and never shown, and if *the score belongs
to the trial*. A record is either trained on or held out. For a training record, a trial costs as
much as its training, since the score reads only the released model and other records. For a
held-out record, it costs as much as the score: a noised count, which is accounted
(``scoring="noised"``); nothing, if the record is public; or the Statement names the score as not
covered.

Among equal scores the first trial wins. Trials are exchangeable, so this breaks ties at random.
"""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import torch

from forethought.accounting import adaptive, exact
from forethought.accounting.interval import at_most
from forethought.accounting.statement import SCORE, About, Randomness, Statement, account
from forethought.data import Dataset as LoadedData
from forethought.data.dataset import PersonRows
from forethought.ledger.book import OverBudgetError, unit_of
from forethought.ledger.paid_run import joined_evidence
from forethought.rounds.contributions import Loss, mixing_layers
from forethought.rounds.preparation import require_unprepared
from forethought.rounds.private_sum import Team
from forethought.rounds.randomness import BoundNoise, Secrets, Seeds, Stream, encoded, noised_count
from forethought.rounds.records import Records, as_records, digest_of
from forethought.training import folder as folders
from forethought.training import metrics
from forethought.training import records as fitting
from forethought.training import run as runs
from forethought.training.execution import Execution, ShortForms, alone, settled, usable
from forethought.training.folder import Checkpoint, Checkpointer, CheckpointError, RunFolder
from forethought.training.metrics import Event, Metrics, evaluate
from forethought.training.run import Run, Task
from forethought.values.caveats import Caveat
from forethought.values.checks import function, instance, one_of, optional, real, require_payer
from forethought.values.mechanism import Mechanism, Persons, Rounds
from forethought.values.plan import Paid, Payer, Plan, Transcript, TranscriptError

Scoring = Literal["noised", "public", "unprotected"]
Score = Callable[[torch.nn.Module], float]

_PUBLIC = "give public ones as holdout= with scoring='public'"
_EITHER = "give either holdout= (records to score on) or score= (a function)"
# How a model is scored → its caveat in the statement.
_SCORED = {"noised": "disjoint-score", "public": "public-score", "unprotected": "unprotected-score"}


@dataclass(frozen=True)
class Tuned:
    """The best trial of a search; nothing of the other trials is kept.

    Args:
        run: the run of the best trial. With Poisson trials there may have been no trial; then the
            model is untrained and ``run.history`` has only round 0.
        plan: the candidate of the best trial.
        score: its score, noised if ``scoring="noised"``.
        statement: the statement of the whole search; the same as ``run.statement``.
    """

    run: Run
    plan: Plan
    score: float
    statement: Statement

    @property
    def model(self) -> torch.nn.Module:
        """The best trial's model."""
        return self.run.model


def _not_public(name: str, instead: str) -> fitting.CoincidingRecordsError:
    """The error of records that are said to be public and are not."""
    return fitting.CoincidingRecordsError(
        f"records in {name}= (by default the data's own test part) are as private as the rest: "
        f"give public ones, or say {instead}, and the Statement tells how far they are covered"
    )


def _warn_of_overspending(
    plans: Sequence[Plan], trials: adaptive.Trials, score_noise: float | None
) -> None:
    """Warn of a search that spends more than the budget that its candidates name.

    So it does where each candidate was planned to spend the budget alone.
    """
    every = [plan.mechanism for plan in plans]
    for plan in dict.fromkeys(plans):
        budget = plan.budget
        if budget is None:
            continue
        terms = plan.mechanism, every, trials, score_noise, budget.delta
        details = adaptive.selection_details(*terms)
        spent = adaptive.selection_interval(plan.mechanism, budget.delta, 1, details).upper
        if spent > budget.epsilon * (1 + fitting.SLACK):
            warnings.warn(
                f"the search spends epsilon {at_most(spent)} at delta {budget.delta:.3g}, above "
                f"{budget.epsilon:g} of its candidates: make them with forethought.plan_tuning",
                stacklevel=3,
            )
            return


def tune(  # noqa: C901, PLR0915
    make_model: Callable[[], torch.nn.Module],
    data: object,
    candidates: Sequence[Plan],
    *,
    trials: adaptive.Trials,
    holdout: object | None = None,
    scoring: Scoring = "noised",
    score: Score | None = None,
    score_noise: float | None = None,
    loss: Loss | None = None,
    out: str | Path | None = None,
    files: Mapping[str, str] | None = None,
    overwrite: bool = False,
    about: About | None = None,
    ledger: Payer | None = None,
    execution: Execution | None = None,
    seeds: Seeds | None = None,
    progress: Callable[[int, Event], None] | None = None,
    **short: Unpack[ShortForms],
) -> Tuned:
    """Search for the best candidate privately; the Statement covers the search.

    Args:
        make_model: builds the untrained model of a trial; it must not read private data.
        data: the training records, as in :func:`forethought.train`.
        candidates: plans for the same data, δ and adjacency; each trial draws one at random. See
            :func:`forethought.plan_tuning`. If mechanisms differ, the most costly is accounted.
        trials: distribution of the number of trials.
        holdout: records, not trained on; the score of a model is its share of right answers on
            them.
        scoring: ``"noised"``: the held-out records are private too; the number of right answers
            gets Gaussian noise, and ε covers them. ``"public"``: they are public.
            ``"unprotected"``: they are private and the Statement names them as not covered.
        score: instead of ``holdout``: a function from a model to a number, larger is better, with
            ``"public"`` or ``"unprotected"`` scoring.
        score_noise: standard deviation of the noise on the count. Default: the smallest at which
            held-out records cost no more than training records.
        loss, files, about, execution, short: as in :func:`forethought.train`; only with
            ``log_every=`` are there rows before the last, each with the ε of the search.
        out: run folder of the best trial. Nothing is written before the search ends, so that no
            trace of other trials is left; an interrupted search starts again.
        overwrite: replace a run in ``out``.
        ledger: the book that pays, as for :func:`forethought.train`. A search is reserved as one
            release, for any number of trials, and is charged whole as soon as its first trial
            begins.
        seeds: one of sampling and the number of trials, one of all noise. Default: the operating
            system's entropy. With a seed, the Statement says which part of the guarantee is left.
        progress: called after every round with the number of the trial and the event, for the
            operator only: the number of trials is a secret.

    Returns:
        The best trial.

    Raises:
        ValueError, TypeError: arguments that do not fit, before any private step.
        RunFolderExistsError: ``out`` is not empty (a ValueError).
        OverBudgetError: the ledger's budget is too small for the search (a ValueError).
        Interrupted: Ctrl-C (a KeyboardInterrupt).

    Source: Papernot and Steinke 2022.
    """
    alone("tune")
    execution, seeds = settled(execution, seeds, **short)
    optional(instance, "about", about, kind=About)
    require_payer(ledger)
    function("loss", loss)
    function("progress", progress)
    function("score", score)
    if isinstance(make_model, torch.nn.Module) or not callable(make_model):
        raise TypeError("make_model must be a function that builds a new model for each trial")
    plans = _candidates(candidates)
    if scoring == "public" and score is None and holdout is None and isinstance(data, LoadedData):
        raise _not_public("holdout", "scoring='noised'")
    adaptive.require_trials(trials)
    one_of("scoring", scoring, get_args(Scoring))
    if holdout is not None and score is not None:
        raise ValueError(_EITHER)
    if score is not None and scoring == "noised":
        raise ValueError(
            "score= is your own function: say scoring='public' if it reads no private data, and "
            "otherwise scoring='unprotected', which the Statement names as not covered"
        )
    if score_noise is not None:
        if scoring != "noised":
            raise ValueError(f"score_noise goes with scoring='noised', not {scoring!r}")
        score_noise = real("score_noise", score_noise, above=0)
    selection = selection_of(plans, trials, scoring, score_noise)
    score_noise = selection.score_noise
    _warn_of_overspending(plans, trials, score_noise)
    folders.require_files(files or {})
    folder = None if out is None else RunFolder(out)
    with contextlib.ExitStack() as kept:
        kept.enter_context(folders.locked(folders.path_of(folder)))
        if folder is not None:
            folder.require_free(overwrite)
        paid = None
        if ledger is not None:
            unit = unit_of(plans[0])
            paying = ledger.paid(selection.candidates[0], selection=selection, unit=unit)
            paid = kept.enter_context(paying)
        loss = fitting.usual_loss(data) if loss is None else loss
        given = data
        data, held_out, uses = fitting.opened(data, holdout)
        plans = [fitting.with_caveats(plan, uses) for plan in plans]
        if score is None:
            holdout = held_out
        if (holdout is None) == (score is None):
            raise ValueError(_EITHER)
        records = fitting.arranged(data, plans[0], loss)
        if isinstance(data, PersonRows) and scoring == "noised":
            raise ValueError(f"scoring='noised' counts rows, and a person may have many: {_PUBLIC}")
        rows_model = make_model
        make_model = lambda: records.wrapped(rows_model())  # noqa: E731
        probe = make_model()
        tasks = {
            plan: runs.opened_task(probe, records.data, None, plan, records.loss, execution)
            for plan in dict.fromkeys(plans)
        }
        for plan in {plan.assumed: plan for plan in tasks}.values():
            fitting.warn_of_another_model(plan, probe, given)
        first, size, same = tasks[plans[0]], 1, False
        if score is None:
            held = as_records(holdout, *fitting.form_of(probe), "holdout")
            fitting.require_fit(probe, first.loss, held, "holdout")
            same = fitting.coincide(fitting.as_rows(first.records, probe), held, "holdout")
            if scoring == "public" and same:
                raise _not_public("holdout", "scoring='unprotected'")
            if scoring == "noised" and mixing_layers(probe):
                raise ValueError(f"scoring='noised' allows no batch normalisation: {_PUBLIC}")
            score, size = _counting(held, first.loss, scoring), len(held)
        _value(score, probe)  # what is wrong with a score is said before a trial is paid
        secrets = Secrets.draw(seeds)
        named = (*folders.trained_before(probe, None), *((runs.COINCIDE,) if same else ()))
        more = (Caveat(_SCORED[scoring]), Caveat("candidates", str(len(plans))), *named)

        def stated(plan: Plan) -> Statement:
            uses = dict.fromkeys(use for p in (plan, *plans) for use in p.not_covered)
            uses.pop(adaptive.SEARCH_ALONE, None)
            terms = plan.mechanism, [p.mechanism for p in plans], trials, score_noise, plan.delta
            return account(
                plan.with_(not_covered=tuple(uses)),
                accountant=adaptive.selection_details(*terms),
                not_covered=more,
                randomness=runs.randomness(plan, secrets),
            )

        # Before the first trial, to refuse a mechanism that no theorem covers.
        statements = {plan: stated(plan) for plan in tasks}
        if paid is not None:
            paid.ahead(1)  # from here on the caller can read the models of trials
        if folder is not None:
            folder.begin(overwrite=overwrite)
        best, scores = None, BoundNoise(secrets.noise, "score")
        made = _trials(make_model, tasks, plans, trials, secrets, seeds, progress)
        for trial, found in enumerate(made):
            value = _value(score, found.model)
            if score_noise and found.transcript is not None:
                right = round(value * size)
                told = encoded((trial, score_noise, found.plan.noise))
                bound = scores.bind(told, torch.tensor([right], dtype=torch.float64))
                noise = scores.at(bound)
                value = noised_count(right, score_noise, 1.0, found.plan.noise, noise) / size
                found.transcript.append_other(SCORE, score_noise)
            if best is None or value > best[0] or math.isnan(best[0]):
                best = (value, found)
        statements = {plan: replace(one, about=about) for plan, one in statements.items()}
        return _best(make_model, best, plans[0], statements, folder, paid, files or {})


def selection_of(
    plans: Sequence[Plan], trials: adaptive.Trials, scoring: str, score_noise: float | None = None
) -> adaptive.Selection:
    """The mechanism of a search, accounted as one release; see :func:`tune`."""
    mechanisms = tuple(dict.fromkeys(plan.mechanism for plan in plans))
    if scoring == "noised" and score_noise is None:
        score_noise = adaptive.matching_score_noise(mechanisms, trials, plans[0].delta)
    return adaptive.Selection(mechanisms, trials, score_noise)


def _trials(
    make_model: Callable[[], torch.nn.Module],
    tasks: Mapping[Plan, Task],
    plans: Sequence[Plan],
    trials: adaptive.Trials,
    secrets: Secrets,
    seeds: Seeds,
    progress: Callable[[int, Event], None] | None,
) -> Iterator[Run]:
    """Train a random number of random candidates, one after the other."""
    choices = Stream(secrets.sampling, "candidates")
    number = adaptive.draw(trials, Stream(secrets.sampling, "number of trials").at(0))
    trained: set[str] = set()
    for trial in range(number):
        plan = plans[int(choices.at(trial).integers(len(plans)))]
        model = make_model()
        begun = _weights(model)
        if trained & begun:
            raise ValueError(
                "make_model gave weights that an earlier trial trained: it must build everything "
                "anew, parts that models share too, or freeze it"
            )
        execution = tasks[plan].execution
        if execution.device is not None:
            model.to(usable(execution.device))
        task = replace(
            tasks[plan],
            model=model,
            execution=replace(execution, log_every=execution.log_every or plan.rounds),
            seeds=seeds.part(trial),
            diagnostics=False,
            progress=None if progress is None else partial(progress, trial),
        )
        run = runs.run_plan(task)
        trained |= _weights(run.model) - begun  # a step too small for bfloat16 changes nothing
        yield run


def _weights(model: torch.nn.Module) -> set[str]:
    """A hash of every trained tensor."""
    return {digest_of([p.reshape(-1)], bytes(32)) for p in model.parameters() if p.requires_grad}


def _best(
    make_model: Callable[[], torch.nn.Module],
    best: tuple[float, Run] | None,
    first: Plan,
    statements: Mapping[Plan, Statement],
    folder: RunFolder | None,
    paid: Paid | None,
    files: Mapping[str, str],
) -> Tuned:
    """The result of a search: its best trial, with the statement of the search."""
    if best is None:
        start = Metrics(0, 0.0, first.optimizer.learning_rate, first.clip_norm, 0.0)
        best = (math.nan, Run(make_model(), statements[first], (start,), first))
    value, run = best
    statement = statements[run.plan]
    if run.transcript is not None:
        run.transcript.require(run.plan.mechanism)
        _require_score(run.transcript, statement)
        statement = statement.of_run(run.transcript.releases())
    if paid is not None:
        statement = runs.in_the_book(paid, statement, folder)
    # The ε of one trial is not that of the search.
    accuracy = None if math.isnan(value) else value
    rows = [replace(row, epsilon=statement.epsilon.upper) for row in run.history]
    rows[-1] = replace(rows[-1], accuracy=accuracy)
    plan = fitting.with_caveats(run.plan, (adaptive.SEARCH_ALONE,))
    shown = Run(
        fitting.of_rows(run.model),
        statement,
        tuple(rows),
        plan,
        folders.path_of(folder),
        run.transcript,
    )
    if folder is not None:
        folder.add(files)
    shown = runs.kept_in(folder, shown, Team())
    if run.transcript is not None:
        folders.remember(shown.model, shown.statement)
    return Tuned(shown, plan, value, shown.statement)


def _require_score(transcript: Transcript, statement: Statement) -> None:
    noises = {one.noise_multiplier for one in transcript.releases() if one.name == SCORE}
    accounted = statement.accountant["score_noise"]
    if noises != (set() if accounted is None else {float(accounted)}):
        raise TranscriptError(f"scores were released with noise {sorted(noises)}, not {accounted}")


def _candidates(candidates: Sequence[Plan]) -> list[Plan]:
    plans = list(candidates)
    if not plans or any(not isinstance(plan, Plan) for plan in plans):
        raise TypeError("candidates must be a sequence of at least one forethought.Plan")
    plans = [fitting.uncentred(plan) for plan in plans]
    for plan in plans:
        require_unprepared(plan, "tune")
    for name in ("examples", "delta", "mechanism.adjacency"):
        if len(set(map(attrgetter(name), plans))) > 1:
            raise ValueError(f"all candidates must have the same {name.rpartition('.')[2]}")
    persons = [plan.contribution for plan in plans if isinstance(plan.contribution, Persons)]
    if any(plan.records_per_person > 1 for plan in plans) or len(persons) not in (0, len(plans)):
        raise ValueError("a search is for single records: plan with person_as='contribution'")
    return plans


def _value(score: Score, model: torch.nn.Module) -> float:
    """The score of a model. Raises TypeError: it is no number."""
    found = score(model)
    try:
        return float(found)
    except (TypeError, ValueError):
        raise TypeError(f"score must return a number, not {found!r}") from None


def _counting(records: Records, loss: Loss, scoring: Scoring) -> Score:
    """The share of right answers as a score."""

    def share(model: torch.nn.Module) -> float:
        if scoring == "noised":
            accuracy = metrics.share_alone(model, loss, records)
        else:
            accuracy = evaluate(model, {}, loss, records)[1]
        if accuracy is None:
            raise ValueError(
                "holdout has no labels to count right answers of: give score= for other targets"
            )
        return accuracy

    return share


# Training in phases until an accuracy is reached or the budget is used up.


# The state of a run in phases: the phases that were begun, their outcomes, and the next phase.


STEERED, PUBLIC_TEST = Caveat("steered-by-held-out"), Caveat("public-test")


# Reason why there was no further phase → the words that users read.
ENDINGS: dict[str | None, str] = {
    "reached": "the wanted accuracy was reached",
    "used-up": "the budget was used up",
    "declined": "the budget was used up, or next_phase chose no further phase",
    "unpaid": "the data set's budget had not so much left",
}


@dataclass(frozen=True)
class PhaseRecord:
    """One phase: its rounds, and the accuracy of the model after it (None while it runs)."""

    rounds: Rounds
    accuracy: float | None = None
    history: tuple[Metrics, ...] = field(default=(), compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The phase as JSON values, without the history."""
        return {"rounds": self.rounds.to_dict(), "accuracy": self.accuracy}


@dataclass(frozen=True)
class PhasedRun(Run):
    """A run in phases.

    Args:
        phases: the phases that were run, in order.
        reached: True if the wanted accuracy was reached.
        stopped: the reason why there was no further phase, in words.
    """

    phases: tuple[PhaseRecord, ...] = ()
    reached: bool = False
    stopped: str = ""


class PhaseState:
    """The phases that were begun, and their outcomes."""

    def __init__(
        self, plan: Plan, wanted: float, decide_on: str, chosen: bool, caveats: Sequence[Caveat]
    ) -> None:
        self.plan, self.wanted, self.decide_on = plan, wanted, decide_on
        self.caveats = tuple(caveats)
        self.randomness = Randomness()
        self.transcript = Transcript()
        self.phases: list[PhaseRecord] = []
        self.ending: str | None = None  # a key of ENDINGS
        self.paid: list[str] = []  # the book's evidence of each phase that was paid separately
        self.filter: adaptive.Filter | None = None
        if chosen and plan.budget is not None:
            first = Mechanism(plan.mechanism.rounds[0], adjacency=plan.mechanism.adjacency)
            if exact.epsilon(first, plan.budget.delta).upper <= plan.budget.epsilon:
                self.filter = adaptive.suited_filter(plan.mechanism, plan.budget)
            if self.filter is None or self.filter.would_exceed(first):
                raise ValueError(
                    f"the first phase alone exceeds the budget of epsilon {plan.budget.epsilon}: "
                    "plan it with less of it, for example by forethought.plan_phases"
                )

    @property
    def running(self) -> bool:
        return bool(self.phases) and self.phases[-1].accuracy is None

    @property
    def total(self) -> int:
        return sum(phase.rounds.count for phase in self.phases)

    @property
    def rounds_before(self) -> int:
        return self.total - self.phases[-1].rounds.count

    def next(self, rule: adaptive.NextPhaseRule | None) -> Rounds | None:
        parts = self.plan.mechanism.rounds
        if self.filter is None or rule is None or not self.phases:
            return parts[len(self.phases)] if len(self.phases) < len(parts) else None
        done = tuple((p.rounds, p.accuracy or 0.0) for p in self.phases)
        copy = adaptive.filter_from_state(self.filter.state_dict())
        chosen = rule(adaptive.Progress(self.plan.examples, self.wanted, done, copy))
        if chosen is None:
            self.ending = "declined"
            return None
        if not isinstance(chosen, Rounds):
            raise TypeError(f"next_phase must return Rounds or None, not {chosen!r}")
        # What the plan refuses is refused here: once noted, every resume would meet it again.
        self.of_phase(chosen)
        return None if self.filter.would_exceed(chosen) else chosen

    def of_phase(self, rounds: Rounds) -> Plan:
        """The plan of one phase. Raises ValueError: the run's plan cannot have such rounds."""
        part = Mechanism(rounds, adjacency=self.plan.mechanism.adjacency)
        return self.plan.remade(mechanism=part)

    def begin(self, rounds: Rounds) -> None:
        if self.filter is not None:
            self.filter.spend(rounds)
        self.phases.append(PhaseRecord(rounds))

    def withdraw(self) -> None:
        """Remove the last phase, which could not be paid for; nothing of it was released."""
        self.phases.pop()
        if self.filter is not None:
            state = self.filter.state_dict()
            nothing = [0.0] * len(state["spent"]) if isinstance(state["spent"], list) else 0.0
            self.filter = adaptive.filter_from_state({**state, "spent": nothing})
            for phase in self.phases:
                self.filter.spend(phase.rounds)

    def finish(self, run: Run) -> None:
        before = self.rounds_before
        epochs = self.phases[-2].history[-1].epoch if len(self.phases) > 1 else 0.0
        rows = tuple(
            replace(row, round=row.round + before, epoch=row.epoch + epochs) for row in run.history
        )
        self.phases[-1] = PhaseRecord(self.phases[-1].rounds, run.accuracy, rows)
        if run.transcript is None:
            raise TranscriptError("a phase left no transcript: no statement is written")
        if run.transcript.again:
            raise TranscriptError(
                f"{run.transcript.again} rounds of a phase were released again with other sums, "
                "which no budget accounts for: no statement is written but the phase's own"
            )
        self.transcript.extend(run.transcript)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the rounds that were released."""
        return Mechanism(*(p.rounds for p in self.phases), adjacency=self.plan.mechanism.adjacency)

    def result(
        self, model: torch.nn.Module, folder: RunFolder | None, diagnostics: bool
    ) -> PhasedRun:
        """The result of the whole run.

        Raises:
            TranscriptError: the releases are not those that are accounted.
        """
        plan, details, kind, words = self.plan, None, "phases-fixed", ENDINGS.get(self.ending, "")
        uses = (
            *(use for use in plan.not_covered if use != adaptive.PHASES_ALONE),
            *(*self.caveats, runs.TIME_AND_MEMORY),
            *((runs.NOT_COVERED_TEST, STEERED) if self.decide_on == "held-out" else ()),
            *((runs.NOT_COVERED_DIAGNOSTICS,) if diagnostics else ()),
            *((PUBLIC_TEST,) if self.decide_on == "public" else ()),
        )
        if self.filter is not None:
            own = (*plan.not_covered, adaptive.PHASES_ALONE)
            plan = plan.remade(mechanism=self.mechanism, not_covered=own)
            details, kind = self.filter.details(), "phases-by-results"
        ran = Caveat(kind, f"it stopped after {len(self.phases)} of them because {words}")
        stated = plan.remade(not_covered=(*uses, ran))
        statement = account(stated, randomness=self.randomness, accountant=details)
        # All phases fixed in advance are accounted; a run may have stopped after some of them.
        self.transcript.require(statement.mechanism, stopped=self.filter is None)
        statement = statement.of_run(self.transcript.releases())
        rows = [row for phase in self.phases for row in phase.history]
        spent = runs.epsilon_at(statement, sorted({row.round for row in rows}))
        rows = [replace(row, epsilon=spent[row.round]) for row in rows]
        phases = tuple(replace(p, accuracy=p.accuracy or 0.0) for p in self.phases)
        of_run = model, statement, tuple(rows), plan, folders.path_of(folder), self.transcript
        return PhasedRun(*of_run, phases, self.ending == "reached", words)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that must be the same when a run is resumed."""
        return {
            "accuracy": self.wanted,
            "decide_on": self.decide_on,
            "accounting": "fixed in advance" if self.filter is None else "filter",
        }

    def checkpoint(self) -> Checkpoint:
        """The state, as a checkpoint for the run folder."""
        values = {
            "settings": self.settings,
            "plan": self.plan.to_dict(),
            "caveats": [caveat.to_dict() for caveat in self.caveats],
            "transcript": self.transcript.to_values(),
            "ending": self.ending,
            "filter": None if self.filter is None else self.filter.state_dict(),
            "phases": [
                {**p.to_dict(), "history": list(map(astuple, p.history))} for p in self.phases
            ],
            **({"paid": self.paid} if self.paid else {}),
        }
        return Checkpoint(len(self.phases), {}, values)

    def restore(self, values: Mapping[str, Any]) -> None:
        self.caveats = tuple(Caveat.from_dict(row) for row in values["caveats"])
        self.transcript = Transcript.from_values(values["transcript"])
        self.ending = values["ending"]
        if values["filter"] is not None:
            self.filter = adaptive.filter_from_state(values["filter"])
        self.phases = [_phase_of(row) for row in values["phases"]]
        self.paid = list(values.get("paid", ()))


def _phase_of(row: Mapping[str, Any]) -> PhaseRecord:
    history = tuple(Metrics(*values) for values in row.get("history", ()))
    return PhaseRecord(Rounds.from_dict(row["rounds"]), row["accuracy"], history)


# Train in phases until an accuracy is reached or the budget is used up.
#
# Source: van Dijk et al., "Proactive DP", Appendix E, Figure 15. The accuracy after a phase is a
# function of the releases so far, even on public records, so the decision for a further phase
# depends on earlier outputs. **Formal guarantee**, one of two:
#
# - *Phases fixed in advance* (a plan of several parts). Only the time of stopping depends on
#   results. The releases of a stopped run are a function of the releases of the full run, so the
#   exact ε of the full sequence holds, whenever it stops.
# - *Phases chosen by results* (``next_phase``). A Rényi filter (a Gaussian one where no phase is
#   sampled) has the plan's budget, set before the first round. It is charged before each phase, and
#   a phase that does not fit is not run. Its budget is the guarantee (Feldman and Zrnic 2021,
#   Theorem 4.3).
#
# Both hold for the records that are trained on. Held-out records on which the decisions are based
# are used without noise, and the Statement names them.


DecideOn = Literal["held-out", "public"]
RECORD_SCHEMA = "forethought/phases/1"
# Rows of the history of each phase.
ROWS = 10


def train_until(
    model: torch.nn.Module,
    data: object,
    plan: Plan,
    *,
    accuracy: float,
    test: object | None = None,
    decide_on: DecideOn = "held-out",
    next_phase: adaptive.NextPhaseRule | None = None,
    loss: Loss | None = None,
    out: str | Path | None = None,
    files: Mapping[str, str] | None = None,
    about: About | None = None,
    ledger: Payer | None = None,
    execution: Execution | None = None,
    seeds: Seeds | None = None,
    diagnostics: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[Event], None] | None = None,
    **short: Unpack[ShortForms],
) -> PhasedRun:
    """Train phase after phase until ``accuracy`` is reached or the budget is used up.

    Each phase starts from the reported (averaged) model of the one before, with a fresh optimizer.

    Args:
        model, data, loss, files, about, ledger, execution, diagnostics, short: as in
            :func:`forethought.train`. The ledger reserves all phases, and those that were not run
            are refunded. With ``next_phase`` each phase is reserved separately, the first one
            before a record is read; a later phase that does not fit ends the run.
        plan: each of its parts is a phase: see :func:`forethought.plan_phases`. With
            ``next_phase``, its first part is the first phase, its budget is the filter's, and its
            other parts are only a forecast.
        accuracy: in (0, 1]: stop after the first phase that reaches it.
        test: records to measure the accuracy on. Default: those of a
            ``forethought.data.Dataset``.
        decide_on: ``"public"`` if these records are public, ``"held-out"`` if they are private;
            the Statement names private ones as not covered.
        next_phase: a rule that chooses the next phase by results, or returns None to stop; for
            example :func:`forethought.planning.alternatives.next_by_shortfall`. The total is then
            kept by a Rényi filter at the order that suits the forecast plan best, or by a
            Gaussian one where no phase is sampled.
        out: run folder. A killed run can be resumed from it; the possible releases of a phase are
            charged, and written to disk, before the phase begins.
        seeds: the seeds of each phase are derived from them.
        resume, overwrite: as in :func:`forethought.train`.
        progress: called after every round. Its ε is None, since it does not grow with the rounds.

    Returns:
        The run, with the model of the last phase.

    Raises:
        ValueError, TypeError: arguments that do not fit, before any private step.
        OverBudgetError: the ledger's budget is too small (a ValueError).
        RunFolderExistsError, CheckpointError, OSError, Interrupted: as :func:`forethought.train`.
    """
    alone("train_until")
    execution, seeds = settled(execution, seeds, **short)
    optional(instance, "about", about, kind=About)
    wanted = real("accuracy", accuracy, above=0, most=1)
    one_of("decide_on", decide_on, get_args(DecideOn))
    folder = runs.folder_of(out, files, resume, overwrite)
    plan = instance("plan", plan, Plan)
    if plan.records_per_person > 1:
        raise ValueError("phases promise something to single records: person_as='contribution'")
    plan = fitting.uncentred(plan)
    require_unprepared(plan, "train_until")
    if next_phase is None:
        fitting.require_within_budget(plan)
    if decide_on == "public" and isinstance(data, LoadedData) and test is None:
        raise _not_public("test", "decide_on='held-out'")
    if test is None and not (isinstance(data, LoadedData) and data.test is not None):
        raise TypeError("train_until needs test=, records that accuracy is measured on")
    if next_phase is not None and plan.budget is None:
        raise ValueError("next_phase= needs a plan with a budget, which the filter keeps")
    with contextlib.ExitStack() as held:
        held.enter_context(folders.locked(folders.path_of(folder)))
        first = plan.remade(mechanism=plan.mechanism.first(plan.mechanism.rounds[0].count))
        apart = next_phase is not None and ledger is not None
        paid = None
        if not (apart and resume):  # a resumed phase is paid when its turn comes
            own = first if apart else plan
            paid = runs.reserved(held, ledger, own, folder, resume, overwrite, Team())
        task = runs.task_of(model, data, test, plan, loss, execution)
        if task.held_out is None or evaluate(task.model, {}, task.loss, task.held_out)[1] is None:
            raise ValueError("test has no labels: there is no accuracy to run until")
        fitting.warn_of_another_model(task.plan, model, data)
        if decide_on == "public" and runs.COINCIDE in task.caveats:
            raise _not_public("test", "decide_on='held-out'")
        earlier = () if resume else folders.trained_before(model, folders.path_of(folder))
        caveats = (*task.caveats, *earlier)
        state = PhaseState(task.plan, wanted, decide_on, next_phase is not None, caveats)
        if resume and folder is not None and folder.finished:
            return _read_back(folder, model, state)
        task = replace(
            task,
            folder=folder,
            files=files or {},
            about=about,
            seeds=seeds,
            diagnostics=diagnostics,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
            paid=paid,
        )
        result = replace(_run(task, state, next_phase, ledger if apart else None), model=model)
    folders.remember(result.model, result.statement)
    return result


def _run(
    task: Task, state: PhaseState, next_phase: adaptive.NextPhaseRule | None, ledger: Payer | None
) -> PhasedRun:
    """Run phases to the end.

    Args:
        ledger: pays for each phase separately, as results choose the phases: the rule of an account
            adds up charges that were made. None: ``task.paid`` is for all phases, or there is no
            ledger.
    """
    model, folder = task.model, task.folder
    keys = folders.RunSecrets.draw(task.seeds)
    checkpointer = None
    if folder is not None:
        checkpointer, keys, seeds = _kept(task, state, keys, folder)
        task = replace(task, seeds=seeds)
    drawn = keys.secrets, Secrets.draw(task.seeds)  # a seed given at the resume counts too
    seeded = any(one.seeded_noise for one in drawn), any(one.seeded_sampling for one in drawn)
    state.randomness = Randomness(*seeded, state.plan.noise == "grid")
    # Before the first round, to refuse a mechanism that no theorem covers.
    exact.epsilon(state.plan.mechanism, state.plan.delta)
    while state.ending is None:
        if not state.running:
            chosen = state.next(next_phase)
            if chosen is None:
                state.ending = state.ending or "used-up"
                break
            state.begin(chosen)
            if checkpointer is not None:
                checkpointer.write(state.checkpoint())
        index = len(state.phases) - 1
        if folder is not None and index:
            RunFolder(_place(folder, index - 1)).load_model(model)
        if not _ran(task, state, index, ledger, checkpointer):
            state.withdraw()
            state.ending = "unpaid"
    if folder is not None:
        RunFolder(_place(folder, len(state.phases) - 1)).load_model(model)
    result = state.result(model, folder, task.diagnostics)
    statement = replace(result.statement, about=task.about)
    if ledger is None:
        statement = runs.settled_in(task, statement, state.total)
    else:
        text, words = joined_evidence(state.paid)
        if folder is not None:
            folders.replace_file(folder.path / folders.PAID, text.encode())
            (folder.path / folders.RESERVATION).unlink(missing_ok=True)
        statement = replace(statement, caveats=(*statement.caveats, Caveat("in-the-book", words)))
    result = replace(result, statement=statement)
    return result if folder is None else _finish(folder, state, result)


def _ran(
    task: Task,
    state: PhaseState,
    index: int,
    ledger: Payer | None,
    checkpointer: Checkpointer | None,
) -> bool:
    """Run a phase; False if the ledger's budget is too small for a further phase.

    Raises:
        OverBudgetError: the budget is too small for the first phase.
    """
    part = _phase_task(task, state, index)
    with contextlib.ExitStack() as held:
        paid = None
        if ledger is not None:
            try:
                paid = held.enter_context(_paid_phase(ledger, task, part, index))
            except OverBudgetError:
                if not index:
                    raise
                return False
            part = replace(part, paid=paid, paid_before=0)
        run = runs.run_plan(part)
        state.finish(run)
        if paid is not None:
            state.paid.append(paid.settle()[0])
        if run.accuracy is not None and run.accuracy >= state.wanted:
            state.ending = "reached"
        if checkpointer is not None:  # before leaving the context deletes the reservation's file
            checkpointer.write(state.checkpoint())
    return True


def _paid_phase(
    ledger: Payer, task: Task, part: Task, index: int
) -> contextlib.AbstractContextManager[Paid]:
    """The reservation of a phase: the one noted in its folder, or a new one."""
    if index == 0 and task.paid is not None:
        return contextlib.nullcontext(task.paid)
    path = folders.path_of(task.folder if index == 0 else part.folder)
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
    unit, resume = unit_of(part.plan), path is not None
    return ledger.paid(part.plan.mechanism, unit=unit, folder=path, resume=resume)


def _kept(
    task: Task, state: PhaseState, keys: folders.RunSecrets, folder: RunFolder
) -> tuple[Checkpointer, folders.RunSecrets, Seeds]:
    """Begin the top folder of a run in phases, or continue it and restore its state.

    The top folder keeps the seeds from which later phases derive theirs, readable by its owner
    only, until the run ends; the job in a run folder has no seeds.
    """
    seeds = task.seeds
    begun = None
    if task.resume:
        if (folder.path / folders.PHASES).exists() and not folder.has_checkpoint:
            raise CheckpointError(f"there is no run to resume in {folder.path}")
        begun = folders.continued(folder, state.plan)
    saved = None
    if begun is not None:
        saved, keys = begun
        if "settings" not in saved.values:
            raise CheckpointError(
                f"{folder.path} holds a run that is not in phases: resume it with forethought.train"
            )
        _require(saved.values["settings"], state.settings, folder.path)
        if seeds == Seeds():
            seeds = Seeds(*saved.values.get("seeds", ()))
    named = folders.identity(task.model, task.records, task.held_out, task.loss, keys.identity)
    place = folders.environment(task.model, task.execution.micro_batch)
    fixed = {"identity": named, "environment": place, "watched": {}}
    kept = {**fixed, "seeds": [seeds.sampling, seeds.noise]}
    checkpointer = Checkpointer(folder, state.plan, keys, kept)
    if saved is None:
        overwrite = task.overwrite or task.resume
        checkpointer.begin(state.checkpoint(), task.files, overwrite=overwrite)
    else:
        checkpointer.resume(saved)
        state.restore(saved.values)
    checkpointer.close()  # each phase counts its own rounds
    return checkpointer, keys, seeds


def _phase_task(task: Task, state: PhaseState, index: int) -> Task:
    rounds = state.phases[-1].rounds
    total, tell = max(len(state.plan.mechanism), state.total), task.progress
    folder = None if task.folder is None else RunFolder(_place(task.folder, index))
    every = task.execution.log_every or max(1, math.ceil(rounds.count / ROWS))
    return replace(
        task,
        plan=state.of_phase(rounds),
        folder=folder,
        files={},
        execution=replace(task.execution, log_every=every),
        seeds=task.seeds.part(index),
        # There is a phase to continue, or to read back.
        resume=folder is not None and (folder.checkpoint.is_dir() or folder.finished),
        overwrite=False,
        progress=None if tell is None else _shifted(tell, state.rounds_before, total),
        caveats=(),
        paid_before=state.rounds_before,
    )


def _place(folder: RunFolder, index: int) -> Path:
    return folder.path / folders.PHASES / f"{index + 1:02d}"


def phases_of(path: str | Path) -> tuple[Plan, float] | None:
    """The plan and the wanted accuracy of a run in phases, finished or not; None for other runs."""
    folder = RunFolder(path)
    if folder.has_checkpoint and (folder.checkpoint / folders.KEYS).exists():
        saved = Checkpoint.read(folder.checkpoint).values
        if "settings" not in saved:
            return None
        return Plan.from_dict(saved["plan"]), float(saved["settings"]["accuracy"])
    if folder.finished and (folder.path / folders.RECORD).is_file():
        with folders.undamaged(folder.path / folders.RECORD):
            accuracy = float(
                json.loads((folder.path / folders.RECORD).read_text("utf-8"))["accuracy"]
            )
        return folder.plan(), accuracy
    return None


def _finish(folder: RunFolder, state: PhaseState, result: PhasedRun) -> PhasedRun:
    """Write the results, the statement last; then delete the secrets and the phases' folders."""
    record = {
        "schema": RECORD_SCHEMA,
        **state.settings,
        "reached": result.reached,
        "stopped": result.stopped,
        "phases": [phase.to_dict() for phase in result.phases],
    }
    folders.replace_file(
        folder.path / folders.RECORD, (json.dumps(record, indent=2) + "\n").encode()
    )
    result = runs.kept_in(folder, result, Team())
    folder.erase_phases()
    return result


def _read_back(folder: RunFolder, model: torch.nn.Module, state: PhaseState) -> PhasedRun:
    path = folder.path / folders.RECORD
    if not path.is_file():
        raise CheckpointError(f"the finished run in {folder.path} was not made in phases")
    with folders.undamaged(path):
        record = json.loads(path.read_text(encoding="utf-8"))
        phases = tuple(map(_phase_of, record["phases"]))
        ended = {"reached": record["reached"], "stopped": record["stopped"]}
        settings = {name: record[name] for name in state.settings}
    _require(settings, state.settings, folder.path)
    run = runs.read_back(folder, model, state.plan if state.filter is None else None, Team())
    folder.erase_phases()  # a kill during the end of the run may have left them
    return PhasedRun(**vars(run), phases=phases, **ended)


def _require(saved: Mapping[str, Any], present: Mapping[str, Any], folder: Path) -> None:
    if changed := folders.differing(saved, present):
        raise CheckpointError(f"cannot resume the run in {folder}: {'; '.join(changed.values())}")


def _shifted(progress: Callable[[Event], None], before: int, total: int) -> Callable[[Event], None]:
    return lambda event: progress(
        replace(event, round=event.round + before, rounds=total, epsilon=None)
    )
