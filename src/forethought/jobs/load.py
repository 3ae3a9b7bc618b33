"""From a request to its data and its model: the one way in which a job's records are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from forethought.data import Encoder
from forethought.data.basis import PIECES, Basis, Curves, pairs_pay
from forethought.data.dataset import Dataset, Split
from forethought.data.features import best_features, reason_for
from forethought.data.synthetic import Indices, shares
from forethought.jobs.job import Job, JobError, JobRequest, with_basis, with_features
from forethought.planning import defaults
from forethought.planning.plan_request import PlanRequest, noise_borne, table_radius
from forethought.planning.solve import of_persons, plan, roughly
from forethought.training.metrics import Decisions, chosen_measures, learnt
from forethought.training.records import PerPerson, arranged, usual_loss, weighted, with_caveats
from forethought.values.caveats import Caveat
from forethought.values.checks import importable_from
from forethought.values.mechanism import Budget, FullBatch, Rounds
from forethought.values.plan import Plan, Preparation
from forethought.values.serialisation import Stored

if TYPE_CHECKING:
    from torch import nn

    from forethought.rounds.contributions import Loss
    from forethought.training.records import Arranged


# What a run folder says of its model besides the weights: enough to apply it to new records.


PREPARED = "prepared.json"


@dataclass(frozen=True)
class ModelCard(Stored):
    """Architecture and encoding; the weights are in ``model.safetensors`` beside it.

    Args:
        name, options: the model, as a job names it.
        inputs: shape of one example. classes: how many there are; None for a regression.
        features: what images were turned into, such as ``"scattering"``; None: nothing.
        standardise: a public mean and deviation that inputs are standardised with, or a file beside
            this one that holds what was released for it; None: neither.
        encoder: how a row of a table becomes features; None: the data was no table.
        multilabel: whether ``classes`` counts labels, of which a record has several or none.
        images: shape of one image that features are made of; None: no features, or an older card.
        decisions: how a classifier's outputs become probabilities and answers; None: by softmax,
            and the likeliest.
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
            JobError: no such file, or damaged; says what to do.
        """
        try:
            return super().load(path)
        except FileNotFoundError:
            raise JobError(
                f"{Path(path).parent} holds no model that can be applied: there is no "
                f"{Path(path).name} in it. Give a run folder that forethought train has finished"
            ) from None
        except (OSError, ValueError) as error:
            raise JobError(f"{path} is damaged: {error}. Restore it from a copy") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        # Cards of 0.2 do not know of several labels.
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


_DECLARED = Caveat(
    "declared-shape", "the range or the constants that features are standardised with"
)


_WEIGHTS = Caveat("declared-shape", "the weights of the classes")
_DECISIONS = Caveat("declared-shape", "the shares of the classes and the costs of mistakes")


@dataclass(frozen=True)
class Loaded:
    """A request with its data and a fresh model.

    Everything that is planned from a job's data goes through :meth:`with_caveats`, so that what
    loading read from private records reaches the Statement whichever way the plan is used.

    Attributes:
        read: the request, and few records of the table, as they were before functions of its
            numbers stood beside them.
        counted: the records that it is planned for; None: those that it has.
    """

    request: JobRequest
    dataset: Dataset
    model: nn.Module
    read: tuple[JobRequest, Dataset] | None = None
    counted: int | None = None

    def resized(self, examples: int, budget: Budget) -> Loaded:
        """The job as it would be with another number of records, or budget, to plan with.

        What stands beside a table's columns follows from both. It has few records of the data.
        """
        if self.read is None:
            return self
        request, few = _with_functions(*self.read, (examples, budget))
        if request.job == self.request.job:
            return self
        return Loaded(request, few, request.job.build_model(few), self.read, examples)

    @property
    def examples(self) -> int:
        """Training records, rows of a table."""
        return self.counted or len(self.dataset.train)

    @property
    def persons(self) -> int | None:
        """The number of different persons that they are of, where the data say."""
        return None if self.dataset.persons is None else len(set(self.dataset.persons.tolist()))

    def plan(self, chosen: Mapping[str, Any] | None = None) -> Plan:
        """The plan that the job asks for these data and this model, with what loading read.

        Args:
            chosen: as for :meth:`forethought.jobs.job.Job.make_plan`.
        """
        return self.with_caveats(plan(self.plan_request().with_(**(chosen or {}))))

    def plan_request(self) -> PlanRequest:
        """The same as a request."""
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
        """The request with ranges that are released as its budget and its records pay for them."""
        wanted = self.request.job.training.ranges
        if asked.preparation is not None and asked.preparation.statistics == ("ranges",):
            asked = asked.with_(preparation=None)  # of other numbers
        return asked.with_(preparation=self._ranges(asked, wanted) or asked.preparation)

    def _ranges(self, asked: PlanRequest, wanted: bool | None) -> Preparation | None:
        """The release of where the numbers lie, as it is wanted, or where it pays.

        Raises:
            JobError: it is asked for and not possible.
        """
        job = self.request.job
        numbers = () if self.dataset.encoder is None else self.dataset.encoder.numbers
        if wanted is False or (wanted is None and not _plans_itself(job, self.dataset)):
            return None
        other = asked.preparation or job.data.standardise is not None
        if not numbers or asked.budget is None or self.persons is not None or other:
            if job.training.ranges:
                raise JobError(
                    "[training] ranges = true needs a budget, numbers with declared ranges in "
                    "[data.columns], one row a person, and no standardise: leave it out, or one "
                    "of these"
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
        """True if ranges could be released and are not, since that would say too little."""
        job = self.request.job
        asked = job.plan_request(self.examples, self.parameters, self.features, self.persons)
        able = _plans_itself(job, self.dataset) and self._ranges(asked, True) is not None
        return able and self._ranges(asked, None) is None

    @property
    def _standardised_norm(self) -> float | None:
        """Usual norm of a standardised record, around any mean: a feature is about 1."""
        scaled = self.request.job.data.standardise is not None
        return math.sqrt(math.prod(self.dataset.shape)) if scaled else None

    @cached_property
    def noise_borne(self) -> float | None:
        """Norm of noise that the weights of a network bear; None: linear, or not to be tried."""
        if self.request.job.model.linear:
            return None
        radius = self._standardised_norm or table_radius(self.dataset.feature_norm)
        return noise_borne(self.model, self.dataset.shape, radius)

    @property
    def held_out(self) -> tuple[Any, Any] | None:
        """Records held out as arrays; None: there are none."""
        test = self.dataset.test
        return None if test is None else (test.inputs, test.targets)

    @property
    def parameters(self) -> int:
        """The count of numbers that the model trains."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def features(self) -> int:
        """Features or channels of a record."""
        return self.dataset.shape[0]

    @property
    def forecast_features(self) -> int | None:
        """Features of a linear model of two classes, of which the noise's cost is known
        (:mod:`forethought.planning.forecast`); None: another model."""
        data = self.dataset
        linear = self.request.job.model.name == "linear" and not self.request.job.model.options
        two = data.classes == 2 and not data.multilabel and data.fixed_features is None
        return math.prod(data.shape) if linear and two else None

    @property
    def loss(self) -> Loss | None:
        """One value a row; None: the usual one for its targets."""
        weights = self.class_weights
        if weights is None:
            return usual_loss(self.dataset)
        return weighted(weights, self.dataset)

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """Weights of the loss, one a class: as given, or one over the declared shares.

        Raises:
            JobError: the shares are not declared, or no shares.
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

    def decisions(self, plan: Plan | None = None) -> Decisions | None:
        """The way from outputs to probabilities and answers; None: as they come.

        Args:
            plan: what is trained by; None: only what is declared is looked at.

        Raises:
            JobError: shares or costs that are none, or of another number of classes.
        """
        here, used = (self._of_classes(name, "prevalence") for name in ("data", "predict"))
        costs = self._of_classes("predict", "costs") or ()
        if used is not None and here is None:
            raise JobError(
                "[predict] prevalence is against the share of each class among the records: "
                "declare that as well, [data] prevalence"
            )
        clip = None
        before = None if plan is None else plan.preparation
        if (
            plan is not None
            and before is not None
            and "means" in before.statistics
            and before.becomes
        ):
            flat = plan.clip.rule == "flat" and plan.clip.final is None
            clip = plan.clip.norm / math.hypot(before.becomes, 1.0) if flat else None
        answered = None if here is None else learnt(here, self.class_weights, clip)
        found = Decisions.of(used or here, answered, costs)
        return None if found == Decisions() else found

    def _of_classes(self, section: str, name: str) -> tuple[float, ...] | None:
        """One declared number a class, of shares as such that sum to 1."""
        given = getattr(getattr(self.request.job, section), name)
        if given is None:
            return None
        data, what = self.dataset, f"[{section}] {name} = {list(given)}"
        if data.classes is None or data.multilabel:
            raise JobError(f"{what} goes with classes: drop it for a regression or labels")
        if len(given) != data.classes:
            raise JobError(
                f"{what} has {len(given)} numbers, the data have {data.classes} classes: give one "
                "a class, class 0 first"
            )
        if name == "costs":
            return tuple(map(float, given))
        if min(given) <= 0 or abs(math.fsum(given) - 1) > 1e-3:
            raise JobError(f"{what} must be shares above 0 that sum to 1")
        return tuple(share / math.fsum(given) for share in given)

    def require_metrics(self) -> None:
        """Refuse figures that there are not before anything is trained.

        Raises:
            JobError: says which there are.
        """
        data, _ = self.dataset, self.decisions()  # refuses what is none
        task = "multilabel" if data.multilabel else "classification"
        try:
            chosen_measures(
                "regression" if data.classes is None else task, self.request.job.run.metrics
            )
        except ValueError as error:
            raise JobError(f"[run] {error}") from None

    def require_rows(self, what: str) -> None:
        """Refuse a job that promises something to persons where only rows are known.

        Raises:
            JobError: names what cannot be done.
        """
        if self.dataset.persons is not None or self.request.job.data.most_of_one_person > 1:
            raise JobError(
                f"[data] person: {what} works on rows, not on persons, so far: leave person and "
                "records_per_person out, and mind that ε is then about one row"
            )

    @property
    def advice(self) -> str | None:
        """A choice that would do better with these data than the job's; None: nothing known."""
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
        """The card that says how to apply the trained model to new records, besides its weights.

        Args:
            plan: as for :meth:`decisions`.
        """
        job, data = self.request.job, self.dataset
        return ModelCard(
            job.model.name,
            job.model.options,
            data.shape,
            data.classes,
            data.fixed_features,
            PREPARED if isinstance(job.data.standardise, str) else job.data.standardise,
            data.encoder,
            data.multilabel,
            data.image_shape,
            self.decisions(plan),
        )

    def with_caveats(self, plan: Plan) -> Plan:
        """The plan with what loading read from the private data, each thing once."""
        declared = self.request.job.data.standardise
        own = () if declared is None else (_DECLARED,)
        if self._of_classes("data", "prevalence") or self._of_classes("predict", "costs"):
            own = (*own, _DECISIONS)
        if self.request.job.training.class_weights is not None:
            own = (*own, _WEIGHTS)
        return with_caveats(plan, (*self.dataset.caveats, *own))


def load_job(request: JobRequest, data_dir: Path | None = None) -> Loaded:
    """Read the data of a job and build its model; nothing is released yet.

    Args:
        data_dir: goes before the job's own folder.

    Raises:
        forethought.data.DataError: missing, damaged or unsuitable data.
        ValueError: no such model, or options it does not have; no such permissible delay.
    """
    dataset = request.job.load_data(data_dir)
    if dataset.fixed_features is not None:
        request = with_features(request, dataset.fixed_features)
    with importable_from(request.folder or Path.cwd()):
        if request.job.federation is not None:
            request.job.federation.delay.value.permits(0, 0)  # may be a function of the user's own
        few = None
        if dataset.encoder is not None:
            rows = Split(dataset.train.inputs[:2], dataset.train.targets[:2])
            few = request, replace(dataset, train=rows, test=None)
        examples = len(dataset.train)
        sizes = examples, request.job.budget_of(examples)
        request, dataset = _with_functions(request, dataset, sizes)
        return Loaded(request, dataset, request.job.build_model(dataset), few)


# Records, and the budget, that the functions beside a table's columns are chosen for.
_Sizes = tuple[int, Budget | None]


def _with_functions(
    request: JobRequest, dataset: Dataset, sizes: _Sizes
) -> tuple[JobRequest, Dataset]:
    """The table with what stands beside its columns, and the request that says which it is."""
    add = _with_curves if request.job.model.name == "additive" else _with_basis
    return add(request, dataset, sizes)


def _with_curves(
    request: JobRequest, dataset: Dataset, sizes: _Sizes
) -> tuple[JobRequest, Dataset]:
    """The table with an additive model's features, and the request that says which they are.

    Pairs are taken or left by the number of records and ε. Where several holders train one model
    these are not the same for all, and there are none unless the job asks for them.

    Raises:
        JobError: data without declared columns, or options that the model does not have.
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
            "[training] ranges, basis: an additive model has functions of its own, on the ranges "
            "that are declared: leave both out"
        )
    options = {"pieces": PIECES, "pairs": "auto", **job.model.options}
    if options["pairs"] == "auto":
        alone = job.federation is None and job.gossip is None
        people = sizes[0] / dataset.records_per_person
        epsilon = sizes[1].epsilon if sizes[1] else job.budget.epsilon
        known = len(encoder.numbers), int(people), epsilon
        options["pairs"] = alone and pairs_pay(*known)
        word = "true" if options["pairs"] else "false"
        settled = (*request.settled, f"pairs = {word}: by the number of records, columns and ε")
        job = job.with_("model", pairs=options["pairs"])
        request = replace(request, job=job, settled=settled)
    try:
        curves = Curves(encoder.numbers, options["pieces"], options["pairs"])
    except (TypeError, ValueError) as error:
        raise JobError(f"[model] additive: {error}") from None
    return request, dataset.with_basis(curves)


def _with_basis(request: JobRequest, dataset: Dataset, sizes: _Sizes) -> tuple[JobRequest, Dataset]:
    """The table with the functions of its numbers that the job names, or that suit its sizes.

    Raises:
        JobError: a basis for data that have no declared numbers.
    """
    job, name = request.job, request.job.training.basis
    numbers = () if dataset.encoder is None else dataset.encoder.numbers
    if name == "auto":
        name, why = "none", ""
        if numbers and _plans_itself(job, dataset):
            counts = dataset.shape[0], len(numbers), dataset.classes or 2
            name, why = defaults.basis_for(*sizes, *counts)
        if name != "none":
            request = with_basis(request, name, why)
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


def _plans_itself(job: Job, dataset: Dataset) -> bool:
    """True if all that depends on a linear model's features is left to the planner."""
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


# What members of a federation or a gossip train on: records, or persons with all their rows.
#
# Where the job names a ``person``, a member's examples are its persons, and everything that a
# member has of one person is one contribution; a deal gives each person to one member, rows and
# all.


def require_possible(job: Job) -> None:
    """Refuse what a federation, or a gossip, cannot do with its members' data.

    Raises:
        JobError: says what, and what would go.
    """
    if isinstance(job.data.standardise, str):
        raise JobError(
            f"[data] standardise = {job.data.standardise!r}: every member would standardise by "
            "figures of its own, and one model would be fed different inputs; give public "
            "constants, standardise = [mean, deviation], or declare ranges in [data.columns]"
        )
    if job.training.ranges:
        raise JobError(
            "[training] ranges: every member would encode its table by ranges of its own, and one "
            "model would be fed different inputs; declare ranges in [data.columns]"
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
    """The job's request to the planner for a client of so many records, or persons."""
    request = job.plan_request(size, parameters)
    return request if job.data.person is None else of_persons(request)


def dealt(
    dataset: Dataset, clients: int | None, how: str, generator: np.random.Generator
) -> list[Indices]:
    """The records that each client holds, no person at two of them; see :func:`shares`."""
    targets, persons = dataset.train.targets, dataset.persons
    if persons is None:
        return shares(targets, clients, how, generator, dataset.sites)
    _, firsts, owners = np.unique(persons, return_index=True, return_inverse=True)
    # Data with persons have no column of sites: a person could be at two of them.
    parts = shares(targets[firsts], clients, how, generator)
    return [np.flatnonzero(np.isin(owners, part)).astype(np.int64) for part in parts]


def count_of(dataset: Dataset, part: Indices | None = None) -> int:
    """The number of records, or different persons, of a client."""
    if dataset.persons is None:
        return len(dataset.train) if part is None else len(part)
    own = dataset.persons if part is None else dataset.persons[part]
    return len(np.unique(own))


def module_of(loaded: Loaded) -> nn.Module:
    """The model that members exchange and train; see :class:`PerPerson` where they are persons."""
    if loaded.dataset.persons is None:
        return loaded.model
    return PerPerson(loaded.model, loaded.dataset.train.inputs.shape[1:])


def arranged_for(loaded: Loaded, own: Dataset, plan: Plan) -> Arranged:
    """A member's data as its plan counts them, and the loss of these."""
    return arranged(own.records, plan, loaded.loss)
