"""Private random search: a random number of private trials, of which only the best is shown.

**Formal guarantee.** A trial draws a candidate by a public rule, trains, and scores its model.
Theorems 2 and 6 of Papernot and Steinke 2022 bound what the best of K trials costs from what one
trial costs, if K is drawn from the stated distribution before the first trial and never shown,
and if *the score belongs to the trial*. A record is either trained on or held out. For a training
record the trial costs what its training costs, since the score only looks at the released model
and at other records. For a held-out record it costs what the score costs: a noised count, which is
accounted (``scoring="noised"``), nothing if it is public, or it is named as not covered.

Which trial wins among equal scores is decided by order, and trials are exchangeable, so this is a
tie broken by chance alone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, Unpack, get_args

import torch

from forethought.accounting.adaptive import (
    SEARCH_ALONE,
    Trials,
    draw,
    matching_score_noise,
    selection_details,
)
from forethought.accounting.statement import SCORE, Statement, account
from forethought.data import Dataset as LoadedData
from forethought.data.dataset import PersonRows
from forethought.rounds.contributions import Loss
from forethought.rounds.preparation import require_unprepared
from forethought.rounds.randomness import BoundNoise, Secrets, Seeds, Stream, encoded, noised_count
from forethought.rounds.records import Records, as_records
from forethought.rounds.transcript import Transcript, TranscriptError
from forethought.training.execution import Execution, ShortForms, alone, settled, usable
from forethought.training.folder import RunFolder, locked, remember, trained_before
from forethought.training.metrics import Event, Metrics, evaluate
from forethought.training.records import (
    CoincidingRecordsError,
    arranged,
    coincide,
    of_rows,
    opened,
    uncentred,
    usual_loss,
    warn_of_another_model,
    with_caveats,
)
from forethought.training.run import (
    COINCIDE,
    Run,
    Task,
    opened_task,
    randomness,
    require_public,
    run_plan,
)
from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real
from forethought.values.contributions import Persons
from forethought.values.plan import Plan

Scoring = Literal["noised", "public", "unprotected"]
Score = Callable[[torch.nn.Module], float]

PUBLIC_SCORE = Caveat("public-score")
UNPROTECTED_SCORE = Caveat("unprotected-score")
DISJOINT = Caveat("disjoint-score")


@dataclass(frozen=True)
class Tuned:
    """The best trial of a search, and nothing of the others.

    Args:
        run: of the best trial; with Poisson trials there may have been none, and then the model is
            untrained and ``run.history`` has only round 0.
        plan: the candidate that it ran.
        score: its score; with noise where ``scoring="noised"``.
        statement: of the whole search; the same as ``run.statement``.
    """

    run: Run
    plan: Plan
    score: float
    statement: Statement

    @property
    def model(self) -> torch.nn.Module:
        """The best trial's model."""
        return self.run.model


def tune(  # noqa: C901, PLR0915
    make_model: Callable[[], torch.nn.Module],
    data: object,
    candidates: Sequence[Plan],
    *,
    trials: Trials,
    holdout: object | None = None,
    scoring: Scoring = "noised",
    score: Score | None = None,
    score_noise: float | None = None,
    loss: Loss | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    execution: Execution | None = None,
    seeds: Seeds | None = None,
    progress: Callable[[int, Event], None] | None = None,
    **short: Unpack[ShortForms],
) -> Tuned:
    """Search for the best candidate privately; the Statement covers the search.

    Args:
        make_model: builds the untrained model of a trial; it must not look at private data.
        data: the training records, as in :func:`forethought.train`.
        candidates: plans for the same data, δ and adjacency; each trial draws one at random. See
            :func:`forethought.plan_tuning`. With different mechanisms the worst is accounted.
        trials: how the number of trials is drawn.
        holdout: records, not trained on, that models are scored on by their share of right
            answers.
        scoring: ``"noised"``: the held-out records are private too; the number of right answers
            gets Gaussian noise, and ε covers them. ``"public"``: they are public.
            ``"unprotected"``: they are private and the Statement names them as not covered.
        score: instead of ``holdout``: from a model to a number, larger is better. With
            ``"public"`` or ``"unprotected"`` scoring.
        score_noise: standard deviation of the noise on the count. Default: the least at which
            held-out records pay no more than training records.
        loss, execution, short: as in :func:`forethought.train`.
        out: run folder of the best trial. Nothing is written before the search ends, so that no
            trace of other trials is left; an interrupted search starts again.
        overwrite: replace a run in ``out``.
        seeds: of sampling and the number of trials, and of all noise. Default: the operating
            system's entropy. The Statement says what is left of the guarantee when one was given.
        progress: called after every round with the number of the trial, for the operator only:
            the number of trials is a secret.

    Returns:
        The best trial.

    Raises:
        ValueError, TypeError: arguments that do not fit, before any private step.
        RunFolderExistsError: ``out`` is not empty (a ValueError).
        Interrupted: Ctrl-C (a KeyboardInterrupt).

    Source: Papernot and Steinke 2022.
    """
    alone("tune")
    execution, seeds = settled(execution, seeds, **short)
    plans = _candidates(candidates)
    if scoring == "public" and score is None and holdout is None and isinstance(data, LoadedData):
        raise CoincidingRecordsError(
            "scoring='public' with the data's own test part: it is as private as the rest. Give "
            "public records as holdout=, or leave scoring='noised'"
        )
    loss = loss or usual_loss(data)
    given = data
    data, held_out, uses = opened(data, holdout)
    plans = [with_caveats(plan, uses) for plan in plans]
    if score is None:
        holdout = held_out
    if not isinstance(trials, Trials):
        raise TypeError(
            "trials must be forethought.PoissonTrials or forethought.NegativeBinomialTrials, not "
            f"{trials!r}: the best of a fixed number of trials is not covered"
        )
    one_of("scoring", scoring, get_args(Scoring))
    if (holdout is None) == (score is None):
        raise ValueError("give either holdout= (records to score on) or score= (a function)")
    if score is not None and scoring == "noised":
        raise ValueError(
            "score= is a function of your own: say scoring='public' if it reads no private data, "
            "or scoring='unprotected' if the Statement is to name its records as not covered"
        )
    if score_noise is not None:
        if scoring != "noised":
            raise ValueError(f"score_noise goes with scoring='noised', not {scoring!r}")
        score_noise = real("score_noise", score_noise, above=0)
    mechanisms = list(dict.fromkeys(plan.mechanism for plan in plans))
    if scoring == "noised" and score_noise is None:
        score_noise = matching_score_noise(mechanisms, trials, plans[0].delta)
    records = arranged(data, plans[0], loss)
    if isinstance(data, PersonRows) and scoring == "noised":
        raise ValueError(
            "scoring='noised' counts held-out rows, of which one person may have any number: "
            "give public records as holdout= with scoring='public'"
        )
    rows_model = make_model
    make_model = lambda: records.wrapped(rows_model())  # noqa: E731
    probe = make_model()
    tasks = {
        plan: opened_task(probe, records.data, None, plan, records.loss, execution)
        for plan in dict.fromkeys(plans)
    }
    for plan in {plan.assumed: plan for plan in tasks}.values():
        warn_of_another_model(plan, probe, given)
    first, size, same = tasks[plans[0]], 1, False
    if score is None:
        like = next(probe.parameters())
        held = as_records(holdout, like.dtype, like.device, "holdout")
        same = coincide(first.records, held, "holdout")
        if scoring == "public" and same:
            require_public((COINCIDE,), "holdout", "scoring='unprotected'")
        score, size = _counting(probe, held, first.loss), len(held)
    secrets = Secrets.draw(seeds)
    named = (*trained_before(probe, None), *((COINCIDE,) if same else ()))
    # Before the first trial: a mechanism that no theorem covers is refused here.
    statements = {
        plan: _statement(plan, plans, trials, score_noise, scoring, secrets, named)
        for plan in tasks
    }
    with locked(None if out is None else Path(out)):
        folder = None if out is None else RunFolder(out)
        if folder is not None:
            folder.begin(overwrite=overwrite)
        best, scores = None, BoundNoise(secrets.noise, "score")
        for found in _trials(make_model, tasks, plans, trials, secrets, seeds, progress):
            value = float(score(found.model))
            if score_noise and found.transcript is not None:
                right = round(value * size)
                about = encoded((found.trial, score_noise, found.plan.noise))
                bound = scores.bind(about, torch.tensor([right], dtype=torch.float64))
                noise = scores.at(bound)
                value = noised_count(right, score_noise, 1.0, found.plan.noise, noise) / size
                found.transcript.append_other(SCORE, score_noise)
            if best is None or value > best[0] or math.isnan(best[0]):
                best = (value, found)
        return _best(make_model, best, plans[0], statements, folder)


def _trials(
    make_model: Callable[[], torch.nn.Module],
    tasks: Mapping[Plan, Task],
    plans: Sequence[Plan],
    trials: Trials,
    secrets: Secrets,
    seeds: Seeds,
    progress: Callable[[int, Event], None] | None,
) -> Iterator[_Trial]:
    """Train a random number of random candidates, one after the other."""
    choices = Stream(secrets.sampling, "candidates")
    number = draw(trials, Stream(secrets.sampling, "number of trials").at(0))
    before: list[weakref.ref[torch.nn.Module]] = []
    for trial in range(number):
        plan = plans[int(choices.at(trial).integers(len(plans)))]
        model = make_model()
        if any(earlier() is model for earlier in before):
            raise ValueError("make_model gave the same model twice: it must build a new one")
        before.append(weakref.ref(model))
        device = tasks[plan].execution.device
        if device is not None:
            model.to(usable(device))
        task = replace(
            tasks[plan],
            model=model,
            execution=replace(tasks[plan].execution, log_every=plan.rounds),
            seeds=seeds.part(trial),
            diagnostics=False,
            progress=None if progress is None else partial(progress, trial),
        )
        run = run_plan(task)
        yield _Trial(run.model, run.statement, run.history, plan, None, run.transcript, trial)


@dataclass(frozen=True)
class _Trial(Run):
    trial: int = 0


def _best(
    make_model: Callable[[], torch.nn.Module],
    best: tuple[float, _Trial] | None,
    first: Plan,
    statements: Mapping[Plan, Statement],
    folder: RunFolder | None,
) -> Tuned:
    """The result of a search: its best trial, with the statement of the search."""
    if best is None:
        start = Metrics(0, 0.0, first.optimizer.learning_rate, first.clip_norm, 0.0)
        best = (math.nan, _Trial(make_model(), statements[first], (start,), first))
    value, run = best
    statement = statements[run.plan]
    if run.transcript is not None:
        run.transcript.require(run.plan.mechanism)
        _require_score(run.transcript, statement)
        statement = statement.of_run(run.transcript.releases())
    # What one trial spent by itself is not what the search has spent.
    accuracy = None if math.isnan(value) else value
    last = replace(run.history[-1], epsilon=statement.epsilon.upper, accuracy=accuracy)
    plan = with_caveats(run.plan, (SEARCH_ALONE,))
    path = None if folder is None else folder.path
    shown = Run(of_rows(run.model), statement, (last,), plan, path, run.transcript)
    if folder is not None:
        folder.save_plan(plan)
        statement = folder.save_results(
            run.model.state_dict(), shown.history, statement, run.transcript
        )
        shown = replace(shown, statement=statement)
        folder.erase_secrets()
    if run.transcript is not None:
        remember(shown.model, statement)
    return Tuned(shown, plan, value, statement)


def _require_score(transcript: Transcript, statement: Statement) -> None:
    noises = {one.noise_multiplier for one in transcript.releases() if one.name == SCORE}
    accounted = statement.accountant["score_noise"]
    if noises != (set() if accounted is None else {float(accounted)}):
        raise TranscriptError(
            f"scores were released with noise {sorted(noises)}, {accounted} is accounted: no "
            "statement is written"
        )


def _candidates(candidates: Sequence[Plan]) -> list[Plan]:
    plans = list(candidates)
    if not plans or any(not isinstance(plan, Plan) for plan in plans):
        raise TypeError("candidates must be a sequence of at least one forethought.Plan")
    plans = [uncentred(plan) for plan in plans]
    for plan in plans:
        require_unprepared(plan, "tune")
    for name in ("examples", "delta"):
        if len({getattr(plan, name) for plan in plans}) > 1:
            raise ValueError(f"all candidates must have the same {name}")
    persons = [plan.contribution for plan in plans if isinstance(plan.contribution, Persons)]
    if any(plan.records_per_person > 1 for plan in plans) or len(persons) not in (0, len(plans)):
        raise ValueError(
            "a search promises something to single records: make all candidates with "
            "person_as='contribution', where a person is one record"
        )
    if len({plan.mechanism.adjacency for plan in plans}) > 1:
        raise ValueError("all candidates must be stated under the same adjacency")
    return plans


def _statement(
    plan: Plan,
    plans: Sequence[Plan],
    trials: Trials,
    score_noise: float | None,
    scoring: Scoring,
    secrets: Secrets,
    named: Sequence[Caveat],
) -> Statement:
    uses = (use for p in (plan, *plans) for use in p.not_covered if use != SEARCH_ALONE)
    more = {"noised": DISJOINT, "public": PUBLIC_SCORE, "unprotected": UNPROTECTED_SCORE}[scoring]
    every = [p.mechanism for p in plans]
    return account(
        plan.with_(not_covered=tuple(dict.fromkeys(uses))),
        accountant=selection_details(plan.mechanism, every, trials, score_noise, plan.delta),
        not_covered=(more, Caveat("candidates", str(len(plans))), *named),
        randomness=randomness(plan, secrets),
    )


def _counting(model: torch.nn.Module, records: Records, loss: Loss) -> Score:
    """The share of right answers as a score, tried out on an untrained model."""

    def share(model: torch.nn.Module) -> float:
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        accuracy = evaluate(model, parameters, loss, records)[1]
        if accuracy is None:
            raise ValueError(
                "holdout has no labels to count right answers of: give score= for other targets"
            )
        return accuracy

    share(model)
    return share
