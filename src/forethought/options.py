"""The table of options of a private run, from which keywords, keys and flags are made.

An option is a field of :class:`Keywords` or :class:`JobKeys`, with its name, type and default; an
:class:`OptionRow` has the rest. The table defines the keywords of :func:`forethought.plan` and
:class:`~forethought.planning.plan_request.PlanRequest`, the keys of ``[budget]`` and ``[training]``
in a job file, flags of the command line, the words of error messages, the stub of keywords for
editors, and a table in docs/jobs.md (``python tools/options.py`` writes the last two; a test
compares them).
"""

# ruff: noqa: RUF009 (the calls are fields of dataclasses)

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, reduce
from operator import or_
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real, whole, without_none
from forethought.values.mechanism import (
    Adjacency,
    Augmentation,
    Budget,
    Clipping,
    Local,
    SamplingName,
)
from forethought.values.plan import ClipRule, Preparation
from forethought.values.use import Averaging, AveragingKind, GradientFilter, Schedule, ScheduleKind

NoiseName = Literal["gaussian", "grid", "correlated"]
NoiseScheduleName = Literal["constant", "geometric", "linear", "forgetting"]
SizeScheduleName = Literal["constant", "linear", "geometric", "power"]
PersonAs = Literal["better", "contribution", "group"]
BasisName = Literal["auto", "none", "hats", "fourier", "both"]

# The limits of settings. A smaller δ cannot be told from 0, and beyond these limits the
# accountant's numbers leave the range of a double.
LEAST_DELTA = 1e-60
MOST_STEP_SIZE = 1e6
MOST_ROUNDS = 10_000_000

# Groups of commands that have a flag for an option.
PLANNED, ACCOUNTED, TRAINED = ("plan",), ("plan", "account"), ("plan", "train", "tune")
EVERYWHERE = ("plan", "train", "tune", "account")


@dataclass(frozen=True)
class OptionRow:
    """The properties of an option apart from its name, type and default.

    Args:
        help: text for the command line and docs/jobs.md.
        above, least, below, most: the range of a number; whole numbers begin at 1 by default.
        section: the table of a job file that has it as a key; None: it is no key.
        must: the required type in words, for errors; "": the type is not checked.
        key: the key's type in a job file, if it differs from the keyword's.
        flags: the commands that have a flag for it.
        part: the keyword that a key is a part of, and its name there.
        choice: True if the option chooses a number of the plan; facts and guarantees do not.
        candidate: True if the candidates of a search may differ in it.
        linear: True if it is for linear models only: jobs with another model refuse it.
    """

    help: str
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    must: str = ""
    section: str | None = "training"
    key: Any = None
    flags: tuple[str, ...] = ()
    part: tuple[str, str] | None = None
    choice: bool = True
    candidate: bool = False
    linear: bool = False


def _option(help: str, *, default: Any = None, **row: Any) -> Any:
    """A dataclass field with its OptionRow."""
    return field(default=default, metadata={"row": OptionRow(help, **row)})


def _known(help: str, *, default: Any = None, **row: Any) -> Any:
    """A dataclass field for a fact or a guarantee, which is no key of a job file."""
    return _option(help, default=default, section=None, choice=False, **row)


_BOOL, _SUCH = "True or False", 'a forethought.{0}, such as {0}("{1}")'


@dataclass(frozen=True, kw_only=True)
class Keywords:
    """The options of a plan as keywords: known facts and goals."""

    examples: int = _known("Records to train on.", default=MISSING, flags=ACCOUNTED)
    budget: Budget | None = _known("Privacy wanted: ε and δ.", must="a forethought.Budget(ε, δ)")
    delta: float | None = _option(
        "δ. Default: 1/(10 · examples), counted as rows also where persons are protected.",
        **{"least": LEAST_DELTA, "below": 1, "section": "budget", "choice": False},
        flags=EVERYWHERE,
    )
    epochs: float | None = _option("Passes over the data.", above=0, flags=EVERYWHERE)
    rounds: int | None = _option("Releases of a noised sum.", most=MOST_ROUNDS, flags=EVERYWHERE)
    batch: int | None = _option("Expected batch size.", flags=EVERYWHERE)
    noise_multiplier: float | None = _option("σ, the noise over C.", least=0, flags=EVERYWHERE)
    noise: NoiseName = _option(
        "Kind of noise: grid is discrete, correlated cancels over cyclic rounds.",
        default="gaussian",
    )
    noise_schedule: NoiseScheduleName = _option(
        "Shape of noise that falls over the run.", default="constant"
    )
    noise_fall: float | None = _option("First noise over the last.", least=0.01, most=100)
    size_schedule: SizeScheduleName = _option(
        "Shape of samples that grow over the run.", default="constant"
    )
    size_growth: float | None = _option("Last sample size over the first.", least=0.001, most=1000)
    size_power: float | None = _option("Power p of sizes ∝ round^p.", above=-1, most=10)
    sampling: SamplingName = _option("How batches are drawn.", default="poisson", flags=ACCOUNTED)
    parts: int | None = _option("Parts of the records that take turns in cyclic-poisson.")
    adjacency: Adjacency | None = _option(
        "Neighbouring data sets. Default: the sampling's.", flags=ACCOUNTED, choice=False
    )
    clipping: Clipping = _option("Unit that is clipped.", default="example", flags=ACCOUNTED)
    groups: int | None = _option("Groups of each batch, with clipping by groups.")
    local: Local | str | Mapping[str, Any] | None = _option(
        "Optimizer inside a group, whose steps are planned, or a table that has them.",
        key=str | dict[str, Any],
    )
    preparation: Preparation | None = _option(
        "Figures of the data that are released first.",
        must="a forethought.Preparation",
        section=None,
    )
    clip_norm: float | None = _option("C, the longest contribution.", above=0, candidate=True)
    final_clip_norm: float | None = _option("C of the last round.", above=0)
    clip_rule: ClipRule | None = _option(
        "Rule of clipping. Default: automatic, or flat at C.", candidate=True
    )
    quantile: float | None = _option(
        "Quantile of norms that C follows, with the rule quantile.",
        above=0,
        below=1,
        candidate=True,
    )
    count_noise: float | None = _option("Noise on the count that this rule needs.", above=0)
    optimizer: str = _option(
        "Optimizer of torch, or module:Class.",
        default="sgd",
        must='a name such as "adam"',
        candidate=True,
    )
    learning_rate: float | None = _option(
        "Step size η.", above=0, most=MOST_STEP_SIZE, candidate=True
    )
    options: Mapping[str, Any] | None = _option(
        "Options of the optimizer, such as momentum.",
        must="a mapping of names to values",
        key=dict[str, Any],
        candidate=True,
    )
    schedule: Schedule | None = _option(
        "Schedule of η.", must=_SUCH.format("Schedule", "cosine"), section=None, candidate=True
    )
    averaging: Averaging | None = _option(
        "Averaging of the iterates.",
        must=_SUCH.format("Averaging", "tail"),
        section=None,
        candidate=True,
    )
    hyperparameters: Caveat | str | None = _known(
        "Choice of the numbers, in words for the Statement."
    )
    not_covered: tuple[Caveat | str, ...] = _known(
        "Exceptions, in words for the Statement.", default=()
    )
    parameters: int | None = _known("Numbers the model trains.", flags=PLANNED)
    feature_norm: float | None = _option(
        "Usual norm of a record's features, declared, for a linear model.", above=0, linear=True
    )
    feature_norm_known: bool = _known(
        "True if that norm follows from how they are made.", default=False, must=_BOOL
    )
    squared_error: bool = _known(
        "True if the loss is the squared error.", default=False, must=_BOOL
    )
    noise_borne: float | None = _known("Norm of noise that a network's weights bear.", above=0)
    untried: bool = _known("True if what its weights bear is not known.", default=False, must=_BOOL)
    features: int | None = _known("Features of a linear model.")
    centre: bool | None = _option(
        "Release of a linear model's mean features first. Default: where it pays.",
        must=_BOOL,
        linear=True,
    )
    image_features: bool = _known(
        "True if features are fixed ones of images.", default=False, must=_BOOL
    )
    records_per_person: int = _known(
        "Records that may be one person's: the promise is about all of them.",
        default=1,
        flags=PLANNED,
    )
    persons: int | None = _known("Different persons among the records.", flags=PLANNED)
    person_as: PersonAs = _option(
        "Unit of persons: one contribution, groups of rows, or the better.", default="better"
    )
    augment: Augmentation | str | Sequence[str] | Mapping[str, Any] | None = _option(
        "Kinds of altered copies of images: mirror, flip, shift, crop.",
        key=str | tuple[str, ...] | dict[str, Any],
    )
    augmentations: int | None = _option("Altered copies in one contribution.")
    gradient_filter: GradientFilter | str | Mapping[str, Any] | None = _option(
        "Filter of noised means: low-pass or kalman.", key=str | dict[str, Any]
    )


@dataclass(frozen=True, kw_only=True)
class JobKeys:
    """The keys of a job file that are no keywords of :func:`forethought.plan`."""

    epsilon: float | None = _option("Budget: ε.", above=0, section="budget", flags=TRAINED)
    class_weights: tuple[float, ...] | Literal["prevalence"] | None = _option(
        "Weights of the loss; give a clip_norm too. prevalence: as rare as declared in [data].",
        above=0,
    )
    basis: BasisName = _option(
        "Functions of a table's numbers beside them: hats on each, Fourier features of "
        "all, or both. Default: from the sizes.",
        default="auto",
    )
    ranges: bool | None = _option(
        "Release of the numbers' usual ranges first. Default: where it pays.", must=_BOOL
    )
    schedule: ScheduleKind | None = _option("Schedule of η.", part=("schedule", "kind"))
    decay: float | None = _option("Decay of the schedule.", least=0, part=("schedule", "decay"))
    stages: tuple[float, ...] | None = _option(
        "Shares of the run at which the schedule stages multiplies by decay.",
        **{"above": 0, "below": 1},
        part=("schedule", "stages"),
    )
    warmup: int | None = _option(
        "Rounds of rising steps at the start.", least=0, part=("schedule", "warmup")
    )
    schedule_unit: Literal["rounds", "examples"] | None = _option(
        "Unit of the schedule's time.", part=("schedule", "unit")
    )
    averaging: AveragingKind | None = _option(
        "Averaging of the iterates.", part=("averaging", "kind")
    )
    averaging_decay: float | None = _option(
        "Decay of exponential averaging.", least=0, below=1, part=("averaging", "decay")
    )
    averaging_fraction: float | None = _option(
        "Fraction of rounds in the tail.", above=0, most=1, part=("averaging", "fraction")
    )


@dataclass(frozen=True)
class Option:
    """An option of the table.

    Args:
        name: of the option. kind: its type without None. optional: whether None is allowed.
        default: its default. row: its other properties.
        words: the allowed words; (): it is not restricted to words.
        range: the given limits of a number, by their names in :class:`OptionRow`.
    """

    name: str
    kind: Any
    optional: bool
    default: Any
    row: OptionRow
    words: tuple[str, ...]
    range: dict[str, float]

    def checked(self, value: Any) -> Any:
        """The value of a keyword after its checks, converted to its type.

        Raises:
            TypeError, ValueError: another type, or a value outside the range.
        """
        if value is None and self.optional:
            return None
        if self.words:
            one_of(self.name, value, self.words)
        elif self.kind is float:
            return real(self.name, value, **self.range)
        elif self.kind is int:
            # An expected batch size, rate × examples, may differ from a whole number by rounding.
            if self.name == "batch" and isinstance(value, float) and math.isfinite(value):
                value = round(value) if math.isclose(value, round(value), rel_tol=1e-9) else value
            return whole(self.name, value, **self.range)  # type: ignore[arg-type]
        elif self.row.must and not isinstance(value, get_origin(self.kind) or self.kind):
            raise TypeError(f"{self.name} must be {self.row.must}, not {value!r}")
        return value


@cache
def table(of: type = Keywords) -> dict[str, Option]:
    """The options that are fields of a class, by name."""
    kinds = get_type_hints(of)
    found = {}
    for given in fields(of):
        parts = get_args(kinds[given.name])
        optional = NoneType in parts
        some = [part for part in parts if part is not NoneType]
        kind = reduce(or_, some) if optional else kinds[given.name]
        row: OptionRow = given.metadata["row"]
        ends = {end: getattr(row, end) for end in ("above", "least", "below", "most")}
        if kind is int and row.least is None:
            ends["least"] = 1
        words = get_args(kind) if get_origin(kind) is Literal else ()
        known = optional, given.default, row, words, without_none(ends)
        found[given.name] = Option(given.name, kind, *known)
    return found


def keys(section: str) -> dict[str, Option]:
    """The keys of a table of a job file, by name."""
    return {name: option for name, option in _given().items() if option.row.section == section}


def flags(command: str) -> dict[str, Option]:
    """The options with a flag of a command, by name."""
    return {name: option for name, option in _given().items() if command in option.row.flags}


@cache
def _given() -> dict[str, Option]:
    """All options as files and commands have them, with ε first."""
    own = table(JobKeys)
    return {"epsilon": own["epsilon"], **table(Keywords), **own}
