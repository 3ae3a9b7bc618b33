"""Plans, runs and private searches for a job's request, for the commands and for Python."""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from forethought.accounting import exact
from forethought.accounting.adaptive import NegativeBinomialTrials, PoissonTrials, Trials
from forethought.accounting.interval import at_least, first_to_last, warn_if_hollow
from forethought.data.basis import Basis, Curves
from forethought.data.dataset import Dataset, PersonRows, Split, one_row_each
from forethought.jobs.job import JOB_NAME, JobError, JobRequest, as_given, overridden
from forethought.jobs.load import Loaded, load_job, public_constants
from forethought.ledger.book import Charge, unit_of
from forethought.ledger.paid_run import Advice
from forethought.planning.alternatives import Front, pareto, plan_phases, plan_tuning
from forethought.planning.defaults import weight_noise
from forethought.planning.forecast import SUPPOSED, Forecast, forecast
from forethought.planning.solve import Neighbour, PlanError, neighbours, plan
from forethought.rounds.contributions import mixing_layers
from forethought.rounds.preparation import InputConstants, Prepared
from forethought.rounds.private_sum import present_team
from forethought.rounds.randomness import Seeds
from forethought.training.cost import Cost, cost
from forethought.training.execution import Execution, free_threads, leads, threads, usable
from forethought.training.folder import (
    CARD,
    PLAN,
    RESERVATION,
    RESULTS,
    SHAPES,
    RunFolder,
    locked,
    replace_file,
    threads_of,
)
from forethought.training.metrics import Decisions, Results, measured, outputs_of
from forethought.training.records import PREPARED, arranged, warn_if_muted, warn_of_another_model
from forethought.training.run import Run, opened_task, train
from forethought.training.search import Tuned, phases_of, selection_of, train_until
from forethought.training.search import tune as search
from forethought.training.shapes import Shape, addition_of
from forethought.utility.graph import UtilityGraph
from forethought.values.checks import one_of, real, without_none
from forethought.values.mechanism import Budget, Persons
from forethought.values.plan import Plan
from forethought.values.serialisation import plain

# A plan for a request with its alternatives and costs, before anything private is trained on.


@dataclass(frozen=True)
class Proposal:
    """A plan with its alternatives.

    Args:
        plan: the plan. alternatives: plans near it.
        front: the front that the plan was chosen from; None: no search.
        loaded: the job with its data; None: the request consists of numbers alone.
        seconds: time of training on this machine; None: not measured.
        cost: memory and time of a network's rounds; None: not measured.
    """

    plan: Plan
    alternatives: tuple[Neighbour, ...] = ()
    front: Front | None = None
    loaded: Loaded | None = None
    seconds: float | None = None
    cost: Cost | None = None

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """The forecasts, one for each supposed AUC without privacy; () for other models."""
        features = None if self.loaded is None else self.loaded.forecast_features
        if features is None or self.plan.privacy.mechanism.rounds[-1].noise_multiplier == 0:
            return ()
        return tuple(forecast(self.plan, features, without) for without in SUPPOSED)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping: the plan with its exact ε, alternatives, front and forecasts."""
        plan = self.plan
        epsilon = exact.epsilon(plan.mechanism, plan.delta, plan.records_per_person)
        return {
            "plan": plan.to_dict(),
            "epsilon": {"lower": epsilon.lower, "upper": epsilon.upper, "reason": epsilon.reason},
            "neighbours": plain(self.alternatives),
            **({} if self.front is None else self.front.to_dict()),
            **without_none({"seconds": self.seconds, "memory": self.cost and self.cost.memory}),
            "forecast": [
                {"without": one.without, "expected": one.expected} for one in self.forecasts
            ],
        }


def propose(
    request: JobRequest,
    *,
    examples: int | None = None,
    parameters: int | None = None,
    persons: int | None = None,
    data_dir: Path | None = None,
    utility: Path | None = None,
    tolerance: float = 0.1,
    limits: Mapping[str, float | None] | None = None,
    weights: Mapping[str, float] | None = None,
    out: Path | None = None,
    timed: bool = False,
    measured: bool = False,
) -> Proposal:
    """The plan for a request, from its data, or for given numbers without data.

    Args:
        examples, parameters, persons: as for :meth:`~forethought.jobs.job.Job.plan_request`;
            ``examples`` None: the job's data are read.
        utility: file of a utility graph. Noise and clip norm are taken from it; in a search its
            predicted loss of accuracy replaces the noise as an objective.
        tolerance: share of accuracy that noise and clip norm may cost by the utility graph.
        limits: search the non-dominated plans within these limits; the numbers that the request
            fixes are kept, and its budget is a limit. None: make one plan, with neighbours.
        weights: of the objectives, to choose one of these plans.
        out: run folder of the training; it is checked and not made.
        timed: measure the time of training here, and the memory of a network's rounds.
        measured: measure the memory for every model; raise where that is not possible.

    Raises:
        ValueError: a request that no plan fulfils, or a job that training would refuse.
        OSError: training could not write ``out``.
    """
    if out is not None:
        require_folder(out)
    if limits is not None:
        request = replace(request, job=request.job.without_ranges())  # a search releases no ranges
    loaded = load_job(request, data_dir) if examples is None else None
    if loaded is None:
        asked = request.job.plan_request(examples or 0, parameters, persons=persons)
    else:
        loaded.require_metrics()
        asked = loaded.plan_request()
    graph = None if utility is None else UtilityGraph.load(utility)
    front = trial = tried = None
    alternatives: tuple[Neighbour, ...] = ()
    if limits is not None:
        of_graph: dict[str, Any] = {}
        if graph is not None:
            of_graph = {"clip_norms": graph.clip_norms, "loss_of_utility": graph.loss}
        front = pareto(asked, limits=without_none(limits), **of_graph)
        chosen = front.best(weights).plan
    else:
        chosen = plan(asked if graph is None else asked.with_(**graph.plan_arguments(tolerance)))
        made = asked.with_(preparation=chosen.preparation)
        alternatives = neighbours(chosen, made.size, made.feature_norm, made.score_rule.noise)
    warn_if_hollow(chosen.delta, chosen.examples, chosen.records_per_person)
    if loaded is not None:
        chosen = loaded.with_caveats(chosen)
        require_trainable(loaded, chosen)
        trial = seconds_of(loaded, chosen) if timed else None
        if measured or (trial and not loaded.request.job.model.linear):
            tried = cost_of(loaded, chosen, measured)
    return Proposal(chosen, alternatives, front, loaded, trial, tried)


def cost_of(loaded: Loaded, plan: Plan, required: bool = False) -> Cost | None:
    """Memory and time of a job's rounds on this machine; None: they cannot be measured.

    Args:
        required: raise the error in place of None.
    """
    try:
        held = loaded.request.job.run.micro_batch
        return cost(loaded.model, loaded.dataset.records, plan, loss=loaded.loss, micro_batch=held)
    except Exception:  # for example too little memory for the trial, which a plan does not need
        if required:
            raise
        return None


def require_trainable(loaded: Loaded, plan: Plan) -> None:
    """Refuse a job whose training would be refused; the job's device is not checked.

    Raises:
        ValueError, TypeError: a model that mixes examples, records that do not fit it, …
    """
    own, test = arranged(loaded.dataset.records, plan, loaded.loss), loaded.held_out
    opened_task(own.wrapped(loaded.model), own.data, test, plan, own.loss, Execution())
    warn_if_muted(loaded.class_weights, plan)


def require_folder(out: Path, overwrite: bool = False) -> None:
    """Refuse a run folder in which a run could not begin; the check leaves no files.

    Raises:
        RunFolderExistsError: a file or a folder with content, and no permission to replace it.
        OSError: the folder cannot be made or written.
    """
    run = RunFolder(out)
    run.require_free(overwrite)
    try:  # nothing is made: another command may be about to use the same folders
        there = next(one for one in (run.path, *run.path.parents) if one.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:  # its message names the temporary file
        raise type(error)(error.errno, error.strerror, str(out)) from None


# Time of a run, from its first rounds on synthetic records of the same shape.
#
# The real run is started, with a temporary folder, its model and its plan, and stopped after a few
# rounds, so that its start is measured, too. Only the number and the shape of the private records
# are used.


# Largest number of rounds of a trial, and seconds after which a trial ends.
TRIED_ROUNDS, TRIED_SECONDS = 40, 1.5
# Limits of a trial: bytes of the data, and products of a record with a weight per round.
MOST_TRIED_BYTES, MOST_TRIED_PRODUCTS = 1 << 30, 3e10


class _EnoughRounds(Exception):  # noqa: N818 (no error: it ends a trial)
    """Ends a trial: enough rounds have been measured."""


def seconds_of(loaded: Loaded, plan: Plan) -> float | None:
    """The measured seconds that training takes on this machine; None: too costly to measure.

    Other work on the machine during the trial or the run changes the result.
    """
    inputs = loaded.dataset.train.inputs
    products = plan.mean_batch * loaded.parameters
    if inputs.nbytes > MOST_TRIED_BYTES or products > MOST_TRIED_PRODUCTS:
        return None
    job = loaded.request.job.model_copy(update={"ledger": None})
    stand_in = replace(
        loaded,
        request=replace(loaded.request, job=job),
        dataset=_like(loaded.dataset),
        model=copy.deepcopy(loaded.model),
    )
    stamps = [time.perf_counter()]

    def watch(event: Any) -> None:
        stamps.append(time.perf_counter())
        tried = len(stamps) > 4 and stamps[-1] - stamps[1] > TRIED_SECONDS
        if tried or event.round >= min(TRIED_ROUNDS, plan.rounds):
            raise _EnoughRounds

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(_EnoughRounds):
            run(PreparedJob(stand_in, plan), Path(folder) / "run", progress=watch)
    begin, rounds = stamps[1] - stamps[0], np.diff(stamps[1:])
    return float(begin + rounds.mean() * (plan.rounds - 1)) if len(rounds) else begin


def _like(dataset: Dataset) -> Dataset:
    """The data set with synthetic records in place of its own, as many and of the same shape."""
    random = np.random.default_rng(0)

    def made(split: Split) -> Split:
        inputs = random.random(split.inputs.shape, dtype=np.float32)
        if dataset.classes is None:
            return Split(inputs, random.random(split.targets.shape, dtype=np.float32))
        most = 2 if dataset.multilabel else dataset.classes
        return Split(inputs, random.integers(0, most, split.targets.shape))

    persons = dataset.persons
    if persons is not None:
        persons = (np.arange(len(persons)) % len(set(persons.tolist()))).astype(np.str_)
    test = None if dataset.test is None else made(dataset.test)
    return replace(dataset, train=made(dataset.train), test=test, persons=persons)


# From a request to a finished run folder, for the command line and for Python.


Records = tuple[Any, Any] | PersonRows


@dataclass(frozen=True)
class PreparedJob:
    """A job with its data loaded, its model built and its plan made.

    ``until`` is the accuracy at which a run in phases stops; None runs the whole plan.
    """

    loaded: Loaded
    plan: Plan
    until: float | None = None


def prepare(
    request: JobRequest,
    data_dir: Path | None = None,
    *,
    until: float | None = None,
    max_epsilon: float | None = None,
    resume: Path | None = None,
    saved_plan: Path | None = None,
    out: Path | None = None,
    overwrite: bool = False,
) -> PreparedJob:
    """Load the data, build the model, make the plan; nothing private is released yet.

    Args:
        until: run in phases until this accuracy on held-out data.
        max_epsilon: budget of all phases together; the job's by default.
        resume: folder of a run to continue: its plan.json is used instead of the planner, and for a
            run in phases its accuracy, too.
        saved_plan: a plan file to use instead of the planner.
        out, overwrite: the run folder; it is checked before the data are read.

    Raises:
        JobError: a run until an accuracy without a budget, or without held-out data; a saved plan
            for another number of records.
        ValueError: a device that this machine does not have.
        RunFolderExistsError, OSError: as for :func:`require_folder`.
    """
    if out is not None and resume is None:
        require_folder(out, overwrite)
    if request.job.run.device is not None:
        usable(request.job.run.device)
    if max_epsilon is not None:
        if until is None:
            raise JobError("a largest epsilon goes with an accuracy to run until")
        request = overridden(request, {"epsilon": real("max_epsilon", max_epsilon, above=0)})
    if until is not None:  # a run in phases releases no ranges
        request = replace(request, job=request.job.without_ranges())
    if request.job.payer is not None and resume is None:
        request.job.payer.require()  # report an exhausted budget before the data are read
    loaded = load_job(request, data_dir)
    loaded.require_metrics()
    if resume is None:
        request.job.recognise(data_dir, loaded.dataset)
    else:
        phased = phases_of(resume)
        if phased is not None:
            return PreparedJob(loaded, *phased)
        if (resume / PLAN).is_file():
            return PreparedJob(loaded, Plan.load(resume / PLAN))
    if until is not None and (request.job.budget.epsilon is None or loaded.dataset.test is None):
        raise JobError(
            "a run until an accuracy needs a budget (--max-epsilon) and held-out data to measure it"
        )
    plan = loaded.plan() if saved_plan is None else _saved(saved_plan, loaded)
    warn_if_hollow(plan.delta, plan.examples, plan.records_per_person)
    if until is not None:
        if plan.preparation is not None and not plan.preparation.centres:
            raise JobError(
                "phases pay for no preparation: standardise with public constants, without ranges"
            )
        if plan.records_per_person > 1:
            raise JobError(
                "a run until an accuracy protects single records, and a person may have "
                f"{plan.records_per_person}: declare person, with person_as = 'contribution'"
            )
        plan = plan_phases(plan)
    return PreparedJob(loaded, plan, until)


def _saved(path: Path, loaded: Loaded) -> Plan:
    """A saved plan for a job's data. Raises JobError: it was made for others."""
    plan, job = Plan.load(path), loaded.request.job
    alone = not isinstance(plan.contribution, Persons)
    own, most = loaded.examples if alone else loaded.persons, job.data.most_of_one_person
    problem = ""
    if plan.examples != own:
        problem = f"is a plan for {plan.examples} records, the job's data have {own}"
    elif alone and plan.records_per_person < most:
        problem = (
            f"promises something to {plan.records_per_person} records together, and by the job "
            f"{most} may be one person's"
        )
    asked, encoder = plan.preparation, loaded.dataset.encoder
    if asked is not None and asked.measures:
        fits = encoder is not None and asked.numbers == len(encoder.numbers)
        fits = fits and loaded.persons is None and job.data.standardise is None
        linear = job.model.name == "linear" or asked.becomes is None
        if not fits or not linear or isinstance(encoder and encoder.basis, Curves):
            problem = f"first releases where {asked.numbers} numbers of another table or model lie"
        elif asked.features is not None and asked.features != loaded.features:
            problem = f"is a plan for {asked.features} features, the job has {loaded.features}"
    if problem:
        raise JobError(f"{path} {problem}. Plan again with: forethought plan JOB --save PLAN")
    if (norm := loaded.plan_request().feature_norm) is not None:
        warn_of_another_model(plan, loaded.model, norm=norm)
    return loaded.with_caveats(plan)


def _standardised(
    asked: PreparedJob, data: Records, folder: Path, options: dict[str, Any]
) -> Records:
    """The prepared training data; ``options`` get the prepared held-out data and the files."""
    given = asked.loaded.request.job.data.standardise
    prepared = asked.plan.preparation
    apply: Callable[[Any], Any]
    if prepared is not None and prepared.measures:
        apply = _by_ranges(asked, data, folder, options)
    elif prepared is None or prepared.centres:  # the run itself releases the means for centring
        if not isinstance(given, tuple):
            return data
        apply = public_constants(given, asked.loaded.features).apply
    else:
        apply = _released_once(asked, _counted(data, asked.plan), folder, options).apply
    if options["test"] is not None:
        options["test"] = (apply(options["test"][0]), options["test"][1])
    if isinstance(data, PersonRows):
        return replace(data, rows=Split(np.asarray(apply(data.rows.inputs)), data.rows.targets))
    return apply(data[0]), data[1]


def _released_once(
    asked: PreparedJob, data: Any, folder: Path, options: dict[str, Any]
) -> InputConstants:
    """The constants that are released before training: those of the continued run, or new ones.

    ``options`` get the releases and their file. In a run of several processes one process makes
    them.
    """
    from forethought.rounds.preparation import prepare

    def text() -> str:
        if options["resume"] and (kept := RunFolder(folder).prepared()):
            return kept
        return prepare(asked.plan, data, seeds=Seeds(None, options["noise_seed"])).to_json() + "\n"

    made, files = present_team().first(text), options["files"]
    options["prepared"] = found = Prepared.from_json(made)
    # In the order of writing: what is released reaches the disk in the file that a continued run
    # reads. The model card repeats it: if that came first, it could be released again, unpaid.
    options["files"] = {JOB_NAME: files[JOB_NAME], PREPARED: made, **files}
    return found.constants


def _by_ranges(
    asked: PreparedJob, data: Records, folder: Path, options: dict[str, Any]
) -> Callable[[Any], Any]:
    """A function that encodes the table with the ranges of its numbers, which are released now."""
    encoder = asked.loaded.dataset.encoder
    assert encoder is not None and not isinstance(data, PersonRows)
    basis = encoder.basis or Basis(encoder.numbers)
    assert isinstance(basis, Basis)  # an additive model has no ranges
    width = data[0].shape[1] - basis.more
    numbers = data[0][:, list(basis.numbers)]
    found = _released_once(asked, (numbers, data[1]), folder, options)
    own = basis.with_ranges(found.ranges)
    card = asked.loaded.card(asked.plan)
    card = replace(card, encoder=replace(encoder, basis=own))
    options["files"] = {**options["files"], CARD: card.to_json()}
    return lambda inputs: own.of(inputs[:, :width])


def _counted(data: Records, plan: Plan) -> tuple[Any, Any]:
    """The plan's examples as arrays: one row of each person, where a person is a contribution.

    One person then moves a statistic by at most as much as one record does.
    """
    if not isinstance(data, PersonRows):
        return data
    rows = data.rows
    if isinstance(plan.contribution, Persons):
        rows = one_row_each(rows, data.persons.tolist())
    return rows.inputs, rows.targets


def run(
    prepared: PreparedJob,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[Any], None] | None = None,
) -> Run:
    """Train a prepared job and write its run folder.

    Args:
        folder: the run folder. resume: continue the run in it. overwrite: replace its content.
        progress: called with the events of training.
    """
    loaded, folder = prepared.loaded, RunFolder(folder).path
    if not resume:  # before a ledger is charged, and before anything is released
        require_trainable(loaded, prepared.plan)
    job, card = loaded.request.job, loaded.card(prepared.plan).to_json()
    options: dict[str, Any] = job.run.model_dump(exclude={"threads", "metrics"})
    options |= {"test": loaded.held_out, "loss": loaded.loss, "about": job.about.about()}
    options |= {"files": {JOB_NAME: loaded.request.released_text(), CARD: card}, "out": folder}
    options |= {"resume": resume, "overwrite": overwrite, "progress": progress}
    with contextlib.ExitStack() as held:
        held.enter_context(threads(_threads(loaded, folder, resume)))
        options["ledger"] = _payer(prepared, folder, options, held)
        # Arrays without caveats: the plan has the caveats of loading since it was made.
        data = _standardised(prepared, loaded.dataset.records, folder, options)
        accuracy = prepared.until
        trained = train if accuracy is None else partial(train_until, accuracy=accuracy)
        found = trained(loaded.model, data, prepared.plan, **options)
    if leads():
        _keep_results(loaded, found, options["test"], folder)
        _keep_shapes(loaded, found, prepared.plan, folder)
    return found


def _payer(
    prepared: PreparedJob, folder: Path, options: dict[str, Any], held: contextlib.ExitStack
) -> Any:
    """The ledger that the run reserves its budget from; None: the job names none.

    Its refusal names the largest ε that the job could still have. Where
    statistics are released before training, the reservation is made here.
    """
    loaded, advice = prepared.loaded, None
    ledger, asked = loaded.request.job.payer, loaded.request.job.budget.epsilon
    if ledger is None:
        return None

    def charged(epsilon: float) -> tuple[Plan, Charge]:
        plan = loaded.plan({"budget": Budget(epsilon, prepared.plan.delta)})
        return plan, Charge(plan.mechanism, plan.records_per_person, unit=unit_of(plan))

    if asked is not None and prepared.until is None:
        advice = _largest(asked, charged)
    payer = SimpleNamespace(paid=partial(ledger.paid, advice=advice))
    plan, run = prepared.plan, RunFolder(folder)
    if plan.preparation is None or not leads() or (options["resume"] and run.finished):
        return payer
    with locked(folder):
        if not options["resume"]:  # before an earlier run is cleared away
            require_folder(folder, options["overwrite"])
        paid = payer.paid(
            plan.mechanism,
            group=plan.records_per_person,
            unit=unit_of(plan),
            folder=folder,
            resume=options["resume"],
        )
        fresh = not options["resume"] and not options["overwrite"]
        try:
            with paid:  # what fails in here is refunded
                if not options["resume"]:
                    # Before the mark: from there on a run begun anew would be paid for once more,
                    # and this one can be resumed. The plan first: another one is never paid for.
                    run.begin(overwrite=options["overwrite"])
                    run.add({PLAN: plan.to_json() + "\n", JOB_NAME: options["files"][JOB_NAME]})
                    options["overwrite"] = True
                # Before another process may enter the folder: it takes one without a mark.
                paid.ahead(len(plan.mechanism) - plan.rounds)
                held.enter_context(paid)
        except BaseException:
            if fresh and not (folder / RESERVATION).is_file():  # refunded: it may be tried again
                for name in (PLAN, JOB_NAME):
                    (folder / name).unlink(missing_ok=True)
            raise
    return paid


# Largest number of plans in the search for the largest ε that still fits.
_TRIED = 8


def _largest(asked: float, charged: Callable[[float], tuple[Plan, Charge]]) -> Advice:
    """A function that gives, in words, the largest ε below ``asked`` whose plan still fits.

    Args:
        charged: ε → its plan and the charge for it.
    """

    def advice(fits: Callable[[Charge], bool], left: float) -> str | None:
        low, high, found = 0.0, asked, None
        tried = min(left, 0.98 * asked)
        for _ in range(_TRIED):
            if not tried > 1e-3 * asked:
                break
            epsilon = float(at_least(tried, ".3g"))
            try:
                plan, charge = charged(epsilon)
            except PlanError:
                break
            if fits(charge):
                low, found = tried, (epsilon, plan)
            else:
                high = tried
            if high - low < 0.02 * asked:
                break
            tried = (low + high) / 2
        if found is None:
            return "no smaller epsilon of this job fits"
        epsilon, plan = found
        noise = first_to_last([part.noise_multiplier for part in plan.privacy.mechanism], ".4g")
        return (
            f"the largest of this job that still fits is --epsilon {epsilon:g} "
            f"({plan.rounds:,} rounds at noise multiplier {noise})"
        )

    return advice


def _threads(loaded: Loaded, folder: Path, resume: bool) -> int:
    """The number of threads: the job's, that of the continued run, or as many as are free."""
    settings = loaded.request.job.run
    begun = threads_of(RunFolder(folder)) if resume else None
    if found := settings.threads or begun:
        return found
    seeded = settings.seed is not None or settings.noise_seed is not None
    return free_threads(torch.get_num_threads(), by_load=not seeded)


def _keep_results(loaded: Loaded, found: Run, test: tuple[Any, Any] | None, folder: Path) -> None:
    """Write the model's results on held-out records to the run folder."""
    # Layers that mix records, such as batch normalisation, need a choice of statistics first.
    if test is None or any(mixing_layers(found.model)):
        return
    encoder, persons = loaded.dataset.encoder, loaded.dataset.test_persons
    names = loaded.request.job.run.metrics
    called = _called(loaded)
    outputs, targets = outputs_of(found.model, test[0]), np.asarray(test[1])
    if not np.isfinite(outputs).all():
        words = "the answers to held-out records are not finite: take a smaller learning_rate"
        warnings.warn(words, stacklevel=2)
        return
    if called is None:
        values = outputs.reshape(len(outputs), -1)[:, 0].astype(np.float64)
        if encoder is not None:
            values, targets = encoder.restored(values), encoder.restored(targets)
        label = None if encoder is None else encoder.label
        results = measured(values, targets, None, names, target=label, persons=persons)
    else:
        rule = loaded.decisions(found.plan, held_out=True)
        results = measured(outputs, targets, called, names, rule, persons=persons)
    replace_file(folder / RESULTS, results.to_json().encode())


def _called(loaded: Loaded) -> Sequence[Any] | None:
    """The names of the classes that a page may show; None for a regression."""
    if loaded.dataset.classes is None:
        return None
    # A page may be passed on, so it must not show labels that were found in the data, not even
    # those that forethought init found and their owner has not declared yet.
    section, encoder = loaded.request.job.data, loaded.dataset.encoder
    declared: Sequence[Any] | None = None if section.columns_measured else section.classes
    if loaded.dataset.multilabel:
        declared = None if encoder is None else encoder.classes
    return declared or [f"class {n}" for n in range(loaded.dataset.classes)]


def _keep_shapes(loaded: Loaded, found: Run, plan: Plan, folder: Path) -> None:
    """Write the curve of each column of an additive model, which follows from its weights."""
    data, encoder = loaded.dataset, loaded.dataset.encoder
    if encoder is None or not isinstance(encoder.basis, Curves):
        return
    noise = weight_noise(plan)
    if noise is not None and (folder / PREPARED).is_file():
        # The weights of scaled features are divided by the scale, and so is their noise.
        noise /= min(Prepared.load(folder / PREPARED).constants.scale or (1.0,))
    called = _called(loaded)
    unit = "score of a class, against the mean of all"
    if called is None:
        called, unit = [encoder.label or "target"], f"in units of {encoder.label or 'the target'}"
    elif data.multilabel:
        unit = "log-odds of a label"
    elif len(called) == 2:
        called, unit = called[1:], f"log-odds of {called[1]}"
    rule = loaded.decisions(plan) or Decisions()
    model = addition_of(encoder, found.model, multilabel=data.multilabel, shift=rule.shift)
    shapes = model.shapes(list(map(str, called)), unit, noise)
    if loaded.request.job.data.columns_measured:  # as of classes: found, and not declared yet
        shapes = replace(shapes, columns=tuple(map(_numbered, shapes.columns)))
    replace_file(folder / SHAPES, (shapes.to_json() + "\n").encode())


def _numbered(shape: Shape) -> Shape:
    """The curve of a column, with numbers in place of the words of a column of words."""
    if shape.kind != "word":
        return shape
    return replace(shape, places=tuple(f"word {n + 1}" for n in range(len(shape.places))))


def named(results: Results | None, loaded: Loaded) -> Results | None:
    """Results for the terminal, with the job's own names of the classes.

    Files, which may be passed on, have only the names that their owner declared.
    """
    names = loaded.request.job.data.classes
    if results is None or names is None or len(names) != len(results.classes):
        return results
    return replace(results, classes=tuple(map(str, names)))


# From a request to a private search for its best step size.


def trials_of(distribution: str, mean: float) -> Trials:
    """A distribution of the number of trials by name, with its mean."""
    one_of("distribution", distribution, ("negative-binomial", "poisson"))
    if distribution == "poisson":
        return PoissonTrials(mean)
    return NegativeBinomialTrials.of_mean(mean, shape=0)


def tune_job(
    request: JobRequest,
    folder: Path,
    learning_rates: Sequence[float],
    trials: Trials,
    *,
    scoring: str = "noised",
    overwrite: bool = False,
    data_dir: Path | None = None,
) -> Tuned:
    """Run a private search for the best step size of a job; its budget covers the whole search.

    Args:
        folder: of the search. learning_rates: the step sizes to try.
        trials: distribution of the number of trials. scoring: as for ``forethought.tune``.

    Raises:
        JobError: no budget, or no held-out data to score on. OverBudgetError: the job's ledger has
            too little budget left.
    """
    if request.job.payer is not None:
        request.job.payer.require()  # report an exhausted budget before the data are read
    # The given step sizes are meant for the job's own inputs, so the planner adds no features.
    request = as_given(request)
    job = request.job
    loaded = load_job(request, data_dir)
    job.recognise(data_dir, loaded.dataset)
    if job.budget.epsilon is None or loaded.dataset.test is None:
        raise JobError("a private search needs a budget, and held-out data to score trials on")
    dataset, given = loaded.dataset, job.data.standardise
    if isinstance(given, tuple):
        apply = public_constants(given, loaded.features).apply
        dataset = dataset.with_inputs(apply, feature_norm=None)
    rates = [{"learning_rate": rate} for rate in learning_rates]
    asked = loaded.plan_request()
    found = plan_tuning(asked, trials=trials, candidates=rates)
    candidates = [loaded.with_caveats(plan) for plan in found]
    warn_if_muted(loaded.class_weights, candidates[0])

    def charged(epsilon: float) -> tuple[Plan, Charge]:
        budget = Budget(epsilon, candidates[0].delta)
        plans = plan_tuning(asked, trials=trials, candidates=rates, budget=budget)
        found = selection_of(plans, trials, scoring)
        return plans[0], Charge(plans[0].mechanism, selection=found, unit=unit_of(plans[0]))

    advice, payer = _largest(job.budget.epsilon, charged), job.payer
    with threads(_threads(loaded, folder, False)):
        return search(
            lambda: job.build_model(dataset),
            dataset,
            candidates,
            trials=trials,
            scoring=scoring,  # type: ignore[arg-type]
            loss=loaded.loss,
            out=folder,
            files={JOB_NAME: loaded.request.released_text(), CARD: loaded.card().to_json()},
            overwrite=overwrite,
            about=job.about.about(),
            ledger=payer and SimpleNamespace(paid=partial(payer.paid, advice=advice)),
            **job.run.model_dump(include={"seed", "noise_seed", "micro_batch", "device"}),
        )
