"""The data and the model of a job's request; a job's records are read here only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import nn

from forethought.data import Encoder
from forethought.data.basis import PIECES, Basis, Curves, pairs_pay
from forethought.data.dataset import Dataset, Split
from forethought.data.features import best_features, reason_for
from forethought.data.synthetic import Indices, shares
from forethought.jobs.job import Job, JobError, JobRequest
from forethought.planning import defaults
from forethought.planning.plan_request import PlanRequest, noise_borne, table_radius
from forethought.planning.solve import of_persons, plan, roughly
from forethought.rounds.contributions import Loss
from forethought.rounds.preparation import InputConstants
from forethought.statistics.kinds import Statistic
from forethought.statistics.sections import statistic
from forethought.training import records
from forethought.training.metrics import Decisions, chosen_measures, learnt
from forethought.values.caveats import Caveat
from forethought.values.checks import importable_from
from forethought.values.mechanism import Budget, FullBatch, Rounds
from forethought.values.plan import Plan, Preparation
from forethought.values.serialisation import Stored

# The model card of a run folder: with the weights it is enough to apply the model to new records.


@dataclass(frozen=True)
class ModelCard(Stored):
    """Architecture and encoding of a model; its weights are in ``model.safetensors`` next to it.

    Args:
        name, options: the model, as a job names it.
        inputs: shape of one example. classes: number of classes; None for a regression.
        features: fixed features that replace images, such as ``"scattering"``; None: none.
        standardise: a public mean and deviation to standardise inputs with, or the name of a file
            in the same folder with the constants that were released; None: neither.
        encoder: encodes a row of a table as features; None: the data was no table.
        multilabel: whether ``classes`` counts labels, of which a record has several or none.
        images: shape of one image that features are made of; None: no features, or an older card.
        decisions: turns a classifier's outputs into probabilities and answers; None: softmax, and
            the likeliest class.
    """

    SCHEMA: ClassVar[str] = "forethought/model/1"
    CALLED: ClassVar[str] = "model card"
    LATER: ClassVar[tuple[str, ...]] = ("images", "decisions")

    name: str
    options: Mapping[str, Any]
    inputs: tuple[int, ...]
    classes: int | None
    features: str | None = None
    standardise: tuple[float, float] | str | None = None
    encoder: Encoder | None = None
    multilabel: bool = False
    images: tuple[int, ...] | None = None
    decisions: Decisions | None = None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a card.

        Raises:
            JobError: no such file, or a damaged one; the message says what to do.
        """
        try:
            return super().load(path)
        except FileNotFoundError:
            raise JobError(
                f"{Path(path).parent} holds no model that can be applied, as it has no "
                f"{Path(path).name}. Give a run folder that forethought train has finished"
            ) from None
        except (OSError, ValueError) as error:
            raise JobError(f"{path} is damaged: {error}. Restore it from a copy") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        # Cards of version 0.2 have no field ``multilabel``.
        return super().from_dict({"multilabel": False, **values})

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Self:
        if values["encoder"] is not None:
            values["encoder"] = Encoder.from_dict(values["encoder"])
        if values["decisions"] is not None:
            values["decisions"] = Decisions(**{k: tuple(v) for k, v in values["decisions"].items()})
        for name in ("inputs", "standardise", "images"):
            values[name] = tuple(values[name]) if isinstance(values[name], list) else values[name]
        return cls(**values)


def public_constants(given: tuple[float, float], features: int) -> InputConstants:
    """The constants of a public mean and deviation, the same for each feature."""
    shift, scale = given
    return InputConstants((shift,) * features, (scale,) * features)


@dataclass(frozen=True)
class Loaded:
    """A request with its data and a new model.

    Every plan from a job's data passes :meth:`with_caveats`, so that the Statement names what
    loading read from private records, whatever the plan is used for.

    Attributes:
        request, dataset, model: the request, its data and its untrained model.
        read: the request and two records of the table before basis functions of its numbers were
            added; None: the data was no table.
        counted: number of records to plan for; None: those of the data set.
    """

    request: JobRequest
    dataset: Dataset
    model: nn.Module
    read: tuple[JobRequest, Dataset] | None = None
    counted: int | None = None

    def resized(self, examples: int, budget: Budget) -> Loaded:
        """The job for another number of records and another budget, to plan with.

        The basis functions of a table follow from both. If they change, the result has two records
        only.
        """
        if self.read is None:
            return self
        request, few = _with_functions(*self.read, examples, budget)
        if request.job == self.request.job:
            return self
        return Loaded(request, few, request.job.build_model(few), self.read, examples)

    @property
    def examples(self) -> int:
        """The number of training records (rows of a table)."""
        return self.counted or len(self.dataset.train)

    @property
    def persons(self) -> int | None:
        """The number of different persons of the records; None: the data have no persons."""
        return None if self.dataset.persons is None else len(set(self.dataset.persons.tolist()))

    def plan(self, chosen: Mapping[str, Any] | None = None) -> Plan:
        """The job's plan for these data and this model, with the caveats of loading.

        Args:
            chosen: fields of the :class:`~forethought.planning.plan_request.PlanRequest` to
                replace.
        """
        return self.with_caveats(plan(self.plan_request().with_(**(chosen or {}))))

    def plan_request(self) -> PlanRequest:
        """The request to the planner for these data and this model."""
        asked = self.request.job.plan_request(
            self.examples, self.parameters, self.features, self.persons
        )
        asked = self.with_ranges(asked)
        squares = self.dataset.classes is None
        if not self.request.job.model.linear:
            borne = self.noise_borne
            return asked.with_(noise_borne=borne, untried=borne is None, squared_error=squares)
        scaled = self.request.job.data.standardise is not None
        fixed = self.dataset.fixed_features is not None and not scaled
        asked = asked.with_(
            features=math.prod(self.dataset.shape), image_features=fixed, squared_error=squares
        )
        norm = self._standardised_norm or self.dataset.feature_norm
        if self.dataset.feature_norm is None or asked.feature_norm:
            return asked
        return asked.with_(feature_norm=norm, feature_norm_known=True)

    def with_ranges(self, asked: PlanRequest) -> PlanRequest:
        """The request with a release of ranges, if the job asks for it or it is worth its cost."""
        wanted = self.request.job.training.ranges
        if asked.preparation is not None and asked.preparation.statistics == ("ranges",):
            asked = asked.with_(preparation=None)  # it was made for another budget or size
        return asked.with_(preparation=self._ranges(asked, wanted) or asked.preparation)

    def _ranges(self, asked: PlanRequest, wanted: bool | None) -> Preparation | None:
        """The release of the ranges of numbers, if it is wanted or worth its cost; else None.

        Raises:
            JobError: the job asks for it, and it is not possible.
        """
        job = self.request.job
        numbers = () if self.dataset.encoder is None else self.dataset.encoder.numbers
        if wanted is False or (wanted is None and not _plans_itself(job, self.dataset)):
            return None
        other = asked.preparation or job.data.standardise is not None
        if not numbers or asked.budget is None or self.persons is not None or other:
            if job.training.ranges:
                raise JobError(
                    "[training] ranges = true needs a budget, numbers with ranges in "
                    "[data.columns], one row a person, and no standardise"
                )
            return None
        budget = roughly(asked, asked.budget)
        moved = Rounds(1.0, 1, FullBatch()).sensitivity(asked.neighbouring)
        count = len(numbers)
        found = defaults.ranges_release(asked.examples, budget, count, moved, bool(wanted))
        if found is None:
            return None
        bins, sigma = found
        return Preparation(("ranges",), bins=bins, numbers=count, ranges_noise=sigma)

    @property
    def _unreleased(self) -> bool:
        """True if a release of ranges is possible, but not worth its cost."""
        job = self.request.job
        asked = job.plan_request(self.examples, self.parameters, self.features, self.persons)
        able = _plans_itself(job, self.dataset) and self._ranges(asked, True) is not None
        return able and self._ranges(asked, None) is None

    @property
    def _standardised_norm(self) -> float | None:
        """The usual norm of a standardised record, whose features have size 1; None: not so."""
        scaled = self.request.job.data.standardise is not None
        return math.sqrt(math.prod(self.dataset.shape)) if scaled else None

    @cached_property
    def noise_borne(self) -> float | None:
        """The norm of the noise that a network's weights tolerate; None: linear, or not known."""
        if self.request.job.model.linear:
            return None
        radius = self._standardised_norm or table_radius(self.dataset.feature_norm)
        return noise_borne(self.model, self.dataset.shape, radius)

    @property
    def held_out(self) -> tuple[Any, Any] | None:
        """The held-out records as arrays (inputs, targets); None: there are none."""
        test = self.dataset.test
        return None if test is None else (test.inputs, test.targets)

    @property
    def parameters(self) -> int:
        """The number of weights that the model trains."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def features(self) -> int:
        """The number of features or channels of a record."""
        return self.dataset.shape[0]

    @property
    def forecast_features(self) -> int | None:
        """The number of features of a linear model of two classes; None: another model.

        For such a model :mod:`forethought.planning.forecast` knows the cost of the noise.
        """
        data = self.dataset
        linear = self.request.job.model.name == "linear" and not self.request.job.model.options
        two = data.classes == 2 and not data.multilabel and data.fixed_features is None
        return math.prod(data.shape) if linear and two else None

    @property
    def loss(self) -> Loss | None:
        """The job's loss, one value for each row; None: the usual one for the targets."""
        weights = self.class_weights
        if weights is None:
            return records.usual_loss(self.dataset)
        return records.weighted(weights, self.dataset)

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """The weights of the loss, one for each class; None: unweighted.

        They are given, or inversely proportional to the declared shares.

        Raises:
            JobError: the shares are not declared, or invalid.
        """
        given = self.request.job.training.class_weights
        if given != "prevalence":
            return None if given is None else tuple(map(float, given))
        shares = self._of_classes("data", "prevalence")
        if shares is None:
            raise JobError(
                'class_weights = "prevalence" needs the share of each class under [data], such as '
                "prevalence = [0.98, 0.02], known without the records"
            )
        return tuple(1 / (len(shares) * share) for share in shares)

    def decisions(self, plan: Plan | None = None, held_out: bool = False) -> Decisions | None:
        """The rule from outputs to probabilities and answers; None: softmax, the likeliest class.

        Args:
            plan: the plan of the training, whose clipping changes what the model learns; None: only
                the declarations are used.
            held_out: for held-out records, which have the shares of the training records, without
                ``[predict] prevalence``.

        Raises:
            JobError: invalid shares or costs, or another number of them than classes.
        """
        here, used = (self._of_classes(name, "prevalence") for name in ("data", "predict"))
        costs = self._of_classes("predict", "costs") or ()
        if used is not None and here is None:
            raise JobError(
                "[predict] prevalence is against [data] prevalence, of the records: declare both"
            )
        clip, before = None, plan and plan.preparation
        if plan and before and "means" in before.statistics and before.becomes:
            flat = plan.clip.rule == "flat" and plan.clip.final is None
            clip = plan.clip.norm / math.hypot(before.becomes, 1.0) if flat else None
        answered = None if here is None else learnt(here, self.class_weights, clip)
        found = Decisions.of(here if held_out else used or here, answered, costs)
        return None if found == Decisions() else found

    def _of_classes(self, section: str, name: str) -> tuple[float, ...] | None:
        """The declared numbers, one for each class; shares are normalised to the sum 1."""
        given = getattr(getattr(self.request.job, section), name)
        if given is None:
            return None
        data, what = self.dataset, f"[{section}] {name} = {list(given)}"
        if data.classes is None or data.multilabel:
            raise JobError(f"{what} goes with classes: drop it for a regression or labels")
        if len(given) != data.classes:
            raise JobError(
                f"{what} has {len(given)} numbers, the data have {data.classes} classes: one each"
            )
        if name == "costs":
            return tuple(map(float, given))
        if min(given) <= 0 or abs(math.fsum(given) - 1) > 1e-3:
            raise JobError(f"{what} must be shares above 0 that sum to 1")
        return tuple(share / math.fsum(given) for share in given)

    def require_metrics(self) -> None:
        """Refuse unknown ``[run] metrics`` and invalid decisions before anything is trained.

        Raises:
            JobError: an unknown metric (the message names the known ones), or as for
                :meth:`decisions`.
        """
        data, _ = self.dataset, self.decisions()  # raises for invalid decisions
        task = "multilabel" if data.multilabel else "classification"
        task = "regression" if data.classes is None else task
        try:
            chosen_measures(task, self.request.job.run.metrics)
        except ValueError as error:
            raise JobError(f"[run] {error}") from None

    def require_rows(self, what: str) -> None:
        """Refuse a job that protects persons, where only rows are supported.

        Args:
            what: the operation that supports rows only, for the error.

        Raises:
            JobError: the job protects persons.
        """
        if self.dataset.persons is not None or self.request.job.data.most_of_one_person > 1:
            raise JobError(
                f"[data] person: {what} works on rows, not on persons, so far: leave person and "
                "records_per_person out, and mind that ε is then about one row"
            )

    @property
    def advice(self) -> str | None:
        """A better choice than the job's for these data, in words; None: none is known."""
        data, job = self.dataset, self.request.job
        if job.training.ranges is None and not job.data.columns_measured and self._unreleased:
            return (
                "ranges as narrow as you know them: with so many records and this ε, where the "
                "numbers lie in them is not released, and ranges ten times too wide cost 2.6 "
                "points on average on 20 tables. [training] ranges = true has it released, for "
                f"{defaults.RANGES:.0%} of the budget's μ² at most"
            )
        chosen = best_features((len(data.train), *data.shape))
        if data.fixed_features is not None or chosen is None or job.federation or job.gossip:
            return None
        return (
            f'images on pixels: features = "{chosen}" under [data], without [model], is the better '
            f"default ({reason_for(chosen)})"
        )

    def card(self, plan: Plan | None = None) -> ModelCard:
        """The model card, for the application of the trained model to new records.

        Args:
            plan: as for :meth:`decisions`.
        """
        model, data, given = self.request.job.model, self.dataset, self.request.job.data.standardise
        own = model.name, model.options, data.shape, data.classes, data.fixed_features
        by = records.PREPARED if isinstance(given, str) else given
        rule, images = self.decisions(plan), data.image_shape
        return ModelCard(*own, by, data.encoder, data.multilabel, images, rule)

    def with_caveats(self, plan: Plan) -> Plan:
        """The plan with a caveat for everything that loading read from the private data."""
        job, found = self.request.job, [*self.dataset.caveats]
        if job.data.standardise is not None:
            words = "the range or the constants that features are standardised with"
            found.append(Caveat("declared-shape", words))
        if self._of_classes("data", "prevalence") or self._of_classes("predict", "costs"):
            words = "the shares of the classes and the costs of mistakes"
            found.append(Caveat("declared-shape", words))
        if job.training.class_weights is not None:
            found.append(Caveat("declared-shape", "the weights of the classes"))
        return records.with_caveats(plan, tuple(found))


def load_job(request: JobRequest, data_dir: Path | None = None) -> Loaded:
    """Read the data of a job and build its model; nothing is released yet.

    Args:
        data_dir: folder of the data, in place of the job's own.

    Raises:
        forethought.data.DataError: missing, damaged or unsuitable data.
        ValueError: no such model, options it does not have, an invalid delay of a federation, or
            an unknown key of a statistic.
    """
    statistics_of(request.job)
    dataset = request.job.load_data(data_dir)
    fixed = dataset.fixed_features
    if fixed is not None and fixed != request.job.data.features:
        request = request.choosing("data", "features", fixed, reason_for(fixed))
    with importable_from(request.folder or Path.cwd()):
        if request.job.federation is not None:
            # The delay may be a function of the user's, which must be importable.
            request.job.federation.delay.value.permits(0, 0)
        few = None
        if dataset.encoder is not None:
            rows = Split(dataset.train.inputs[:2], dataset.train.targets[:2])
            few = request, replace(dataset, train=rows, test=None)
        examples = len(dataset.train)
        budget = request.job.budget_of(examples)
        request, dataset = _with_functions(request, dataset, examples, budget)
        return Loaded(request, dataset, request.job.build_model(dataset), few)


def statistics_of(job: Job) -> list[Statistic]:
    """The job's ``[[statistics]]``.

    Raises:
        ValueError: an unknown kind or key of a statistic, or a value of another type.
    """
    schema = job.data.table_schema() if job.statistics else None
    declared = None if schema is None else schema.parsed()
    try:
        return [statistic(asked, declared) for asked in job.statistics or ()]
    except TypeError as error:  # a value of another type, as a call in Python is told
        raise JobError(f"[[statistics]]: {error}") from None


def _with_functions(
    request: JobRequest, dataset: Dataset, examples: int, budget: Budget | None
) -> tuple[JobRequest, Dataset]:
    """The request with the chosen basis functions of a table, and the table with them.

    An additive model has functions of its own. For another one the job names the basis, or the
    number of records and the budget decide.

    Raises:
        JobError: a basis for data without declared numbers; or as for :func:`_with_curves`.
    """
    if request.job.model.name == "additive":
        return _with_curves(request, dataset, examples, budget)
    job, name = request.job, request.job.training.basis
    numbers = () if dataset.encoder is None else dataset.encoder.numbers
    if name == "auto":
        name, why = "none", ""
        if numbers and _plans_itself(job, dataset):
            counts = dataset.shape[0], len(numbers), dataset.classes or 2
            name, why = defaults.basis_for(examples, budget, *counts)
        if name != "none":
            why += '; what each column adds (predict --why) is told by model = "additive"'
            request = request.choosing("training", "basis", name, why)
    if name == "none":
        return request, dataset
    if not numbers:
        raise JobError(
            f'[training] basis = "{name}" stands on declared numbers, and there are none: declare '
            "ranges in [data.columns], or leave basis out"
        )
    hats = defaults.HATS if name in ("hats", "both") else 0
    waves = defaults.WAVES if name in ("fourier", "both") else 0
    return request, dataset.with_basis(Basis(numbers, hats, waves))


def _with_curves(
    request: JobRequest, dataset: Dataset, examples: int, budget: Budget | None
) -> tuple[JobRequest, Dataset]:
    """The request with an additive model's options, and the table with its features.

    The number of records and ε decide whether pairs of columns are used. Several holders of one
    model have different numbers, so that they use pairs only where the job asks for them.

    Raises:
        JobError: data without declared columns, or settings that do not fit the model.
    """
    job = request.job
    encoder = dataset.encoder
    if encoder is None or dataset.feature_norm is None:
        raise JobError(
            'the model "additive" draws a curve over the declared range of each column: declare '
            "them in [data.columns] (forethought init FILE writes the table), or name another model"
        )
    if job.data.standardise is not None:
        raise JobError(
            "[data] standardise: an additive model's curves lie on declared ranges: leave it out"
        )
    if job.training.ranges or job.training.basis not in ("auto", "none"):
        raise JobError(
            "[training] ranges, basis: an additive model has functions of its own: leave both out"
        )
    options = {"pieces": PIECES, "pairs": "auto", **job.model.options}
    if options["pairs"] == "auto":
        alone = job.federation is None and job.gossip is None
        people = examples / dataset.records_per_person
        epsilon = budget.epsilon if budget else job.budget.epsilon
        known = len(encoder.numbers), int(people), epsilon
        options["pairs"] = alone and pairs_pay(*known)
        why = "by the number of records, columns and ε"
        request = request.choosing("model", "pairs", options["pairs"], why)
    try:
        curves = Curves(encoder.numbers, options["pieces"], options["pairs"])
    except (TypeError, ValueError) as error:
        raise JobError(f"[model] additive: {error}") from None
    return request, dataset.with_basis(curves)


def _plans_itself(job: Job, dataset: Dataset) -> bool:
    """True if the planner chooses everything that depends on a linear model's features."""
    asked = job.training
    given = asked.learning_rate, asked.feature_norm, asked.clip_norm, job.data.standardise
    return (
        job.model.name == "linear"
        and (job.federation or job.gossip) is None
        and all(value is None for value in given)
        and job.data.most_of_one_person == 1
        and dataset.classes is not None
        and not dataset.multilabel
    )


# The examples of members of a federation or a gossip: records, or persons with all their rows.
#
# Where the job names a ``person``, a member's examples are its persons, and all rows that a member
# has of one person are one contribution. When data is divided among members, all rows of a person
# go to one member.


def require_possible(job: Job) -> None:
    """Refuse settings that a federation or a gossip does not support for its members' data.

    Raises:
        JobError: names the setting and an alternative.
    """
    if isinstance(job.data.standardise, str):
        raise JobError(
            f"[data] standardise = {job.data.standardise!r}: every member would standardise by "
            "figures of its own; give public ones, [mean, deviation], or ranges in [data.columns]"
        )
    if job.training.ranges:
        raise JobError(
            "[training] ranges: every member would have its own; declare them in [data.columns]"
        )
    if job.data.person is None and job.data.most_of_one_person > 1:
        raise JobError(
            "[data] records_per_person: many holders protect rows, or persons that a column tells "
            'apart: say which, person = "patient", or leave records_per_person out'
        )
    if job.data.person is not None and job.training.person_as == "group":
        raise JobError(
            "person_as = 'group': among many holders a person is one contribution: leave it out"
        )


def asked_of(job: Job, size: int, parameters: int | None) -> PlanRequest:
    """The job's request to the planner for a client with ``size`` records or persons."""
    request = job.plan_request(size, parameters)
    return request if job.data.person is None else of_persons(request)


def dealt(
    dataset: Dataset, clients: int | None, how: str, generator: np.random.Generator
) -> list[Indices]:
    """The record numbers of each client, with each person at one client; see :func:`shares`."""
    targets, persons = dataset.train.targets, dataset.persons
    if persons is None:
        return shares(targets, clients, how, generator, dataset.sites)
    _, firsts, owners = np.unique(persons, return_index=True, return_inverse=True)
    # Data with persons have no column of sites: a person could be at two of them.
    parts = shares(targets[firsts], clients, how, generator)
    return [np.flatnonzero(np.isin(owners, part)).astype(np.int64) for part in parts]


def count_of(dataset: Dataset, part: Indices | None = None) -> int:
    """The number of records, or of different persons, of a client (part None: of all data)."""
    if dataset.persons is None:
        return len(dataset.train) if part is None else len(part)
    own = dataset.persons if part is None else dataset.persons[part]
    return len(np.unique(own))


def module_of(loaded: Loaded) -> nn.Module:
    """The model that members exchange and train; a :class:`PerPerson` where data have persons."""
    if loaded.dataset.persons is None:
        return loaded.model
    return records.PerPerson(loaded.model, loaded.dataset.train.inputs.shape[1:])


def arranged_for(loaded: Loaded, own: Dataset, plan: Plan) -> records.Arranged:
    """A member's data as the examples of its plan, with their loss."""
    return records.arranged(own.records, plan, loaded.loss)
