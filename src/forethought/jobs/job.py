"""A user's request, as a TOML file or keyword arguments: validated, with errors in their words.

A job says where the data is, which model, which budget and how to train. Whatever it leaves out
the planner chooses.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
)

from forethought.checks import whole
from forethought.jobs.about_section import AboutSection
from forethought.jobs.explain import explain_errors
from forethought.jobs.federation_section import FederationSection
from forethought.jobs.gossip_section import GossipSection
from forethought.mechanism import Budget
from forethought.planning.limits import LEAST_DELTA, MOST_STEP_SIZE
from forethought.plans import Plan
from forethought.preparation import Preparation
from forethought.samplings import SamplingName
from forethought.use import Averaging, Schedule

if TYPE_CHECKING:  # both import torch or scikit-learn, which a job file alone does not need
    from torch import nn

    from forethought.data import Dataset, TableSchema
    from forethought.planning.plan_request import PlanRequest


# Keys of [training] that are about a linear model.
_OF_LINEAR = {"feature_norm", "centre"}
ROWS_OF_A_PERSON = 4  # are kept, where a job does not say how many


class JobError(ValueError):
    """A job file that cannot be used; the message names the file, the line and what to do."""


# A number is a number: "2" and true are not.
_Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Int = Annotated[int, Field(strict=True)]
_Number = _Int | _Float
_Fixed = Literal[
    "scattering", "patches", "deep-patches", "shifted-patches", "handwriting", "deskewed"
]
_Features = _Fixed | Literal["auto", "pixels"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSection(_Section):
    """Where the training data comes from, and what is declared of it.

    ``features`` is the number of features, or what images are replaced by: ``"scattering"``,
    ``"patches"``, … (:func:`forethought.data.load`); left out, see :attr:`Job.features`.
    ``standardise`` is ``"private"`` (by means and variances that are released with noise, within
    the declared ``bounds``), ``"quantiles"`` (likewise, to [0, 1]), or a public mean and deviation.
    ``label`` is a column, or several with ``task = "multilabel"``.
    ``columns`` declares every column of a table (:mod:`forethought.data.columns` has the forms);
    the keys below it go with it. ``columns_measured`` says that ``forethought init`` wrote them.
    """

    source: str
    folder: Path | None = None
    label: str | tuple[str, ...] | None = None
    test: str | None = None
    holdout: _Float | None = Field(default=None, gt=0, lt=1)
    split_by: str | None = None
    task: Literal["classification", "regression", "multilabel"] | None = None
    classes: tuple[StrictInt | StrictFloat | str, ...] | None = None
    features: Annotated[StrictInt, Field(ge=1)] | _Features | None = None
    standardise: Literal["private", "quantiles"] | tuple[_Float, _Float] | None = None
    bounds: tuple[_Float, _Float] | None = None

    def preparation(self, features: int | None) -> Preparation | None:
        """What is released of the data to standardise it with, and paid for.

        Args:
            features: how many features or channels the loaded data have.

        Raises:
            JobError: no bounds, or no data.
        """
        if isinstance(self.standardise, tuple) and not self.standardise[1] > 0:
            raise JobError(
                f"standardise = {list(self.standardise)}: the second number is a deviation, above 0"
            )
        if self.standardise not in ("private", "quantiles"):
            return None
        if self.bounds is None:
            raise JobError(
                f"standardise = {self.standardise!r} needs bounds = [low, high] in [data]: the "
                "range that features are declared to have, without looking at the private data"
            )
        if features is None:
            raise JobError("standardise needs the data: plan from the job file where they are")
        kind: Literal["moments", "quantiles"] = (
            "moments" if self.standardise == "private" else "quantiles"
        )
        return Preparation((kind,), self.bounds, features)

    columns: dict[str, Any] | None = None
    columns_measured: bool = False
    missing: Literal["refuse", "middle", "category", "drop-column"] | None = None
    target_range: tuple[_Number, _Number] | None = None
    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    comment: str | None = None
    header: bool | None = None
    person: str | None = None
    records_per_person: _Int | None = Field(default=None, ge=1)

    @property
    def most_of_one_person(self) -> int:
        """How many records may be one person's."""
        if self.records_per_person is None:
            return 1 if self.person is None else ROWS_OF_A_PERSON
        return self.records_per_person

    def table_schema(self) -> TableSchema | None:
        """What is declared of the columns; None where nothing is.

        Raises:
            JobError: keys that go with declared columns, without any.
            forethought.data.DataError: a declaration that cannot be used.
        """
        form = {
            name: getattr(self, name)
            for name in ("separator", "decimal", "encoding", "comment", "header")
        }
        rows: dict[str, Any] = {"person": self.person}
        given = {"missing": self.missing, "target_range": self.target_range, **form, **rows}
        if self.columns is None:
            for name in _given(given):
                raise JobError(
                    f"[data] {name} goes with declared columns: add a table [data.columns] "
                    "(forethought init FILE writes it)"
                )
            return None
        from forethought.data import TableFormat, TableSchema

        if self.person is not None:
            rows["records_per_person"] = self.most_of_one_person

        return TableSchema(
            self.columns,
            missing=self.missing or "refuse",
            target_range=self.target_range,
            measured=self.columns_measured,
            form=TableFormat(**_given(form)),
            **_given(rows),
        )


class ModelSection(_Section):
    """Which network: a name of the zoo or ``module:function``; the other keys are its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "linear"

    @property
    def options(self) -> dict[str, Any]:
        """What is handed to the model's builder."""
        return dict(self.model_extra or {})


class BudgetSection(_Section):
    """The promise wanted. δ defaults to 1/(10 · examples)."""

    epsilon: _Float | None = Field(default=None, gt=0)
    delta: _Float | None = Field(default=None, ge=LEAST_DELTA, lt=1)


class TrainingSection(_Section):
    """How to train. What is left out is chosen by the planner."""

    epochs: _Float | None = Field(default=None, gt=0)
    rounds: _Int | None = Field(default=None, ge=1)
    batch: _Int | None = Field(default=None, ge=1)
    noise_multiplier: _Float | None = Field(default=None, ge=0)
    noise: Literal["gaussian", "grid", "correlated"] = "gaussian"
    noise_schedule: Literal["constant", "geometric", "linear", "forgetting"] = "constant"
    noise_fall: _Float | None = Field(default=None, ge=0.01, le=100)
    size_schedule: Literal["constant", "linear", "geometric", "power"] = "constant"
    size_growth: _Float | None = Field(default=None, ge=0.001, le=1000)
    size_power: _Float | None = Field(default=None, gt=-1, le=10)
    sampling: SamplingName = "poisson"
    parts: _Int | None = Field(default=None, ge=1)
    adjacency: Literal["add-or-remove", "zero-out", "replace-one"] | None = None
    clipping: Literal["example", "group"] = "example"
    groups: _Int | None = Field(default=None, ge=1)
    local: str | dict[str, Any] | None = None
    clip_norm: _Float | None = Field(default=None, gt=0)
    final_clip_norm: _Float | None = Field(default=None, gt=0)
    clip_rule: Literal["flat", "automatic", "per-layer", "quantile"] | None = None
    quantile: _Float | None = Field(default=None, gt=0, lt=1)
    count_noise: _Float | None = Field(default=None, gt=0)
    optimizer: str = "sgd"
    feature_norm: _Float | None = Field(default=None, gt=0)
    centre: StrictBool | None = None
    learning_rate: _Float | None = Field(default=None, gt=0, le=MOST_STEP_SIZE)
    options: dict[str, Any] | None = None
    class_weights: tuple[Annotated[_Number, Field(gt=0)], ...] | None = None
    person_as: Literal["better", "contribution", "group"] = "better"
    augment: str | tuple[str, ...] | dict[str, Any] | None = None
    augmentations: _Int | None = Field(default=None, ge=1)
    gradient_filter: str | dict[str, Any] | None = None
    schedule: Literal["constant", "inverse", "inverse-sqrt", "cosine", "drops"] | None = None
    decay: _Float | None = Field(default=None, ge=0)
    warmup: _Int | None = Field(default=None, ge=0)
    schedule_unit: Literal["rounds", "examples"] | None = None
    averaging: Literal["none", "exponential", "tail"] | None = None
    averaging_decay: _Float | None = Field(default=None, ge=0, lt=1)
    averaging_fraction: _Float | None = Field(default=None, gt=0, le=1)


class RunSection(_Section):
    """Speed and bookkeeping: nothing here can change the guarantee."""

    seed: _Int | None = None
    noise_seed: _Int | None = None
    micro_batch: _Int | None = Field(default=None, ge=1)
    device: str | None = None
    threads: _Int | None = Field(default=None, ge=1)
    checkpoint_every: _Int | None = Field(default=None, ge=1)
    metrics: tuple[str, ...] | None = None


class Job(_Section):
    """A whole request. ``Job.load(path)`` reads a TOML file, ``Job(**tables)`` the same in Python.

    Raises:
        JobError: from :meth:`load`, with the file, the line and the nearest known key.
        pydantic.ValidationError: from the constructor.
    """

    data: DataSection
    model: ModelSection = ModelSection()
    budget: BudgetSection = BudgetSection()
    training: TrainingSection = TrainingSection()
    run: RunSection = RunSection()
    about: AboutSection = AboutSection()
    federation: FederationSection | None = None
    gossip: GossipSection | None = None

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """Read a job file.

        Raises:
            JobError: no such file, no TOML, an unknown key or a value that is not allowed.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise JobError(f"no job file {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise JobError(f"cannot read the job file {path}: {error}") from None
        return cls.parse(text, str(path))

    def load_data(self, folder: Path | None = None) -> Dataset:
        """The data set that the job names; ``folder`` goes before the job's own folder.

        Raises:
            forethought.data.DataError: missing, damaged or unsuitable data.
        """
        from forethought.data import load

        section = self.data
        return load(
            section.source,
            folder=folder or section.folder,
            label=section.label,
            holdout=section.holdout,
            features=self.features,
            test=section.test,
            task=section.task,
            classes=section.classes,
            split_by=section.split_by,
            site=self._site,
            schema=section.table_schema(),
        )

    @property
    def features(self) -> int | str | None:
        """``[data] features``; ``"auto"`` where the job leaves images and model to the planner.

        That is a job that says nothing of features, model, holders or pixels, and no step size,
        which would be one for pixels.
        """
        asked, data = self.training, self.data
        settings = (
            *(data.features, data.standardise, self.federation, self.gossip),
            *(asked.augment, asked.augmentations),
            *(asked.learning_rate, asked.feature_norm, asked.centre),
        )
        if "model" in self.model_fields_set or any(value is not None for value in settings):
            return data.features
        return "auto"

    @property
    def _site(self) -> str | None:
        """The column that says which client or worker holds a record, where one does."""
        holders = self.federation or self.gossip
        how, _, column = (holders.shares if holders else "").partition(":")
        return column or None if how == "column" else None

    def plan_request(
        self,
        examples: int,
        parameters: int | None = None,
        features: int | None = None,
        persons: int | None = None,
    ) -> PlanRequest:
        """What the job asks of the planner.

        Args:
            examples: training records. parameters: how many the model trains, if known.
            features: of the loaded data, or channels, where a preparation of them is asked for.
            persons: how many different persons they are of, where the data say.
        """
        from forethought.planning import defaults
        from forethought.planning.plan_request import PlanRequest

        examples = whole("examples", examples)
        asked, delta = self.training, self.budget.delta
        altered = asked.augment is not None or asked.augmentations is not None
        if altered and isinstance(self.data.features, str) and self.data.features != "pixels":
            raise JobError(
                f"augmentations alter pixels, and the features are {self.data.features!r}: drop "
                "[training] augment and augmentations, or [data] features"
            )
        budget = None
        if self.budget.epsilon is not None:
            budget = Budget(self.budget.epsilon, delta or defaults.default_delta(examples))
            delta = None
        schedule = {
            "kind": asked.schedule,
            "decay": asked.decay,
            "warmup": asked.warmup,
            "unit": asked.schedule_unit,
        }
        averaging = {
            "kind": asked.averaging,
            "decay": asked.averaging_decay,
            "fraction": asked.averaging_fraction,
        }
        keys = {field.name for field in fields(PlanRequest)} - {"schedule", "averaging"}
        if self.model.name != "linear":
            keys -= _OF_LINEAR
        return PlanRequest(
            examples=examples,
            parameters=parameters,
            budget=budget,
            delta=delta,
            preparation=self.data.preparation(features),
            schedule=Schedule(**_given(schedule)) if _given(schedule) else None,
            averaging=Averaging(**_given(averaging)) if _given(averaging) else None,
            records_per_person=self.data.most_of_one_person,
            persons=persons,
            **{name: getattr(asked, name) for name in type(asked).model_fields if name in keys},
        )

    def make_plan(
        self,
        examples: int,
        parameters: int | None = None,
        chosen: Mapping[str, Any] | None = None,
        features: int | None = None,
        persons: int | None = None,
    ) -> Plan:
        """The plan that the job asks for.

        Args:
            examples, parameters, features, persons: as for :meth:`plan_request`.
            chosen: arguments of :func:`forethought.plan` that come from elsewhere, such as a
                utility graph; they go before the job's own.

        Raises:
            forethought.planning.solve.PlanError: too much or too little is asked for.
        """
        from forethought.planning.solve import plan

        asked = self.plan_request(examples, parameters, features, persons)
        return plan(asked.with_(**(chosen or {})))

    def build_model(self, dataset: Dataset) -> nn.Module:
        """The model that the job names, shaped for ``dataset``.

        Raises:
            ValueError: no such model, or options it does not have.
        """
        from forethought.models import build

        return build(
            self.model.name,
            inputs=dataset.shape,
            classes=dataset.classes or 1,
            seed=self.run.seed,
            **self.model.options,
        )

    @classmethod
    def parse(cls, text: str, name: str = "job") -> Job:
        """Read a job from TOML text; ``name`` is what errors call it.

        Raises:
            JobError: as :meth:`load`.
        """
        if text.lstrip().startswith("{"):
            raise JobError(
                f"{name} is JSON, not a job: a job is a TOML file. A saved plan goes with "
                "train JOB --plan PLAN, and account PLAN says what it guarantees"
            )
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise JobError(f"{name} is no TOML file: {error}") from None
        try:
            return cls.model_validate(tables)
        except ValidationError as error:
            raise JobError(explain_errors(name, text, error.errors(), cls)) from None


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
