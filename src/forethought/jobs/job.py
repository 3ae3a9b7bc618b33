"""A user's request, from a TOML file or keyword arguments, validated with errors in their terms."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from importlib import resources
from inspect import get_annotations
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from forethought.accounting.statement import LONGEST, About
from forethought.exchange.keys import SERVER_NAME, require_name
from forethought.federated.federation import (
    Delay,
    Exchanged,
    Robust,
    Rule,
    ServerOptimizer,
    local_rounds_of,
)
from forethought.federated.sizes import Sizes
from forethought.gossip.graphs import Kind as GraphKind
from forethought.gossip.mixing import Named as MixingKind
from forethought.options import keys, table
from forethought.values.checks import suggestion, whole, without_none
from forethought.values.mechanism import Budget, LocalRounds
from forethought.values.plan import Plan, Preparation
from forethought.values.use import Averaging, Schedule

if TYPE_CHECKING:
    from torch import nn

    from forethought.data import Dataset, TableSchema
    from forethought.data.files import Table
    from forethought.ledger.paid_run import Ledger
    from forethought.planning.plan_request import PlanRequest


# ``[about]`` of a job: what the Statement quotes in its owner's words.


_Line = Field(default=None, min_length=1, max_length=LONGEST)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AboutSection(_Section):
    """The data, their date, the purpose and the responsible person, in words that nobody checks."""

    data: StrictStr | None = _Line
    date: StrictStr | None = _Line
    purpose: StrictStr | None = _Line
    responsible: StrictStr | None = _Line

    @field_validator("date", mode="before")
    @classmethod
    def _of_toml(cls, value: object) -> object:
        # TOML has a type for dates.
        return value.isoformat() if isinstance(value, datetime.date) else value

    @field_validator("data", "date", "purpose", "responsible")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        if value is not None and (not value.isprintable() or not value.strip()):
            raise ValueError("must be one line of text")
        return value

    def about(self) -> About | None:
        """The section as an About of a Statement; None where it is empty."""
        values = self.model_dump()
        return About(**values) if any(values.values()) else None


# Validation errors of a job file in terms of the file.


_WANTED = "input should be "  # the beginning of pydantic's messages
# The type that pydantic tried; it appends this to the location as if it were a key.
_TRIED = re.compile(r"(constrained-|literal\[|(str|int|float|bool|tuple|list|dict)(\[|$))")


def explain_errors(name: str, text: str, rows: Sequence[Any]) -> str:
    """Validation errors in the user's terms, joined for a value that may have several types.

    Args:
        name: the file's name in errors, or "". text: its content. rows: pydantic's errors.
    """
    found: dict[str, list[str]] = {}
    for row in rows:
        place = row["loc"]
        place = place[:-1] if _TRIED.match(str(place[-1])) else place
        where, _, wanted = explain_error(name, text, {**row, "loc": place}).partition(_WANTED)
        found.setdefault(where, []).append(wanted)
    return "; ".join(
        f"{where}{_WANTED if any(wanted) else ''}{', or '.join(dict.fromkeys(wanted))}"
        for where, wanted in found.items()
    )


def explain_error(name: str, text: str, row: Any) -> str:
    """One validation error in the user's terms: file, line, key and the allowed values."""
    place = [str(part) for part in row["loc"]]
    line = _line_of(text, place)
    where = f"{name}, line {line}: " if line else f"{name}: " if name else ""
    key = ".".join(place)
    if row["type"] == "extra_forbidden":
        known = _known_keys(place[:-1])
        others = Job.model_fields if len(place) < 3 else ()
        homes = " or ".join(f"[{one}]" for one in others if place[-1] in _known_keys([one]))
        return f"{where}unknown key {key!r}; {suggestion(place[-1], known, homes=homes)}"
    if row["type"] == "missing":
        return f"{where}{key!r} is missing"
    found = row.get("input")
    bounds = row.get("ctx", {})
    for bound, words in (("ge", "at least"), ("le", "at most")):
        if bound in bounds:  # pydantic would write 1e-60 with sixty zeros
            return f"{where}{key} = {found!r}: must be {words} {bounds[bound]:g}"
    several = f"tables, each under [[{key}]]" if isinstance(found, dict) else "a list"
    wanted = row["msg"].replace("a valid tuple", several)
    return f"{where}{key} = {found!r}: {wanted[:1].lower()}{wanted[1:]}"


def _known_keys(place: list[str]) -> list[str]:
    section: type[BaseModel] = Job
    for part in place:
        inner = section.model_fields[part].annotation if part in section.model_fields else None
        # An optional section is a union of a model and None.
        inner = next((kind for kind in get_args(inner) if isinstance(kind, type)), inner)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        section = inner
    return list(section.model_fields)


def _line_of(text: str, place: list[str]) -> int | None:
    # tomllib keeps no line numbers; a job file is flat enough to search for the key in its table.
    table: list[str] = []
    header_line = None
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header:
            table = [part.strip().strip("\"'") for part in header.group(1).split(".")]
            if table == place or (header_line is None and table == place[:-1]):
                header_line = number
            continue
        key = re.match(r"\s*([\w.\-\"']+)\s*=", line)
        if key:
            path = [*table, *(part.strip("\"'") for part in key.group(1).split("."))]
            if path == place[: len(path)] and len(path) >= min(len(place), len(table) + 1):
                return number
    return header_line


# ``[federation]`` and ``[gossip]``: the members, the rule, and the speeds of a simulation.


_Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Int = Annotated[int, Field(strict=True)]


class MemberTable(_Section):
    """One ``[[federation.client]]`` or ``[[gossip.worker]]``: the settings of one member.

    ``examples`` and ``folder`` are for a member that brings its own records; ``speed`` is records
    per second relative to the default of 1.
    """

    name: str
    examples: _Int | None = Field(default=None, ge=1)
    epsilon: _Float | None = Field(default=None, gt=0)
    speed: _Float = Field(default=1.0, gt=0)
    folder: str | None = None

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        require_name(value)
        return value


class ClientTable(MemberTable):
    """One ``[[federation.client]]``.

    ``phases``: numbers, from 1, of the phases in which it takes part, fixed before the run; default
    all.
    """

    phases: tuple[Annotated[int, Field(strict=True, ge=1)], ...] | None = None


class WorkerTable(MemberTable):
    """One ``[[gossip.worker]]``; ``address`` is the host:port at which neighbours reach it."""

    address: str | None = None


class HoldersSection(_Section):
    """The settings that a federation and a gossip have in common.

    ``shares`` is the division of records among holders; ``weights`` are the public "size" of each
    holder or "equal". For simulations: ``speeds`` (records per second relative to 1, or
    "lognormal:0.5"), ``slow`` (number of holders that are ``slow_factor`` times slower),
    ``record_seconds``, ``latency``, ``bandwidth`` and ``straggling``.
    """

    kind: ClassVar[str]
    member: ClassVar[str]

    rounds: _Int | None = Field(default=None, ge=1)
    shares: str = "iid"
    weights: Literal["size", "equal"] = "size"
    deadline: _Float | None = Field(default=None, gt=0)
    seed: _Int = Field(default=0, ge=0)
    speeds: tuple[StrictFloat | StrictInt, ...] | str | None = None
    slow: _Int = Field(default=0, ge=0)
    slow_factor: _Float = Field(default=10.0, gt=0)
    record_seconds: _Float = Field(default=0.01, gt=0)
    latency: _Float = Field(default=0.0, ge=0)
    bandwidth: _Float | None = Field(default=None, gt=0)
    straggling: _Float = Field(default=0.0, ge=0)

    @property
    def tables(self) -> tuple[MemberTable, ...]:
        """The tables of single members; empty where there are none."""
        return getattr(self, self.member)

    @property
    def count(self) -> int | None:
        """The number of members; None where the section does not give it."""
        return getattr(self, f"{self.member}s") or len(self.tables) or None

    @property
    def brings_own(self) -> bool:
        """True if every member brings its own records; the job then has their numbers."""
        return bool(self.tables) and all(table.examples is not None for table in self.tables)

    @model_validator(mode="after")
    def _agree_on_members(self) -> Self:
        count = getattr(self, f"{self.member}s")
        if self.tables and count not in (None, len(self.tables)):
            raise ValueError(
                f"{self.member}s = {count}, and there are {len(self.tables)} tables of them"
            )
        told = {table.examples is not None for table in self.tables}
        if len(told) > 1 or any(table.folder and True not in told for table in self.tables):
            raise ValueError(
                f"a {self.member} that brings its own records, from its folder, has examples: give "
                f"them for every {self.member}, or for none and without folder"
            )
        if isinstance(self.speeds, tuple) and self.slow:
            raise ValueError("give speeds, or slow with slow_factor, not both")
        return self


class _ValueTable(_Section):
    """A table that is a value which a federation holds."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    made: ClassVar[Any]

    @property
    def value(self) -> Any:
        """The value."""
        return self.made(**self.model_dump())

    @model_validator(mode="after")
    def _known(self) -> Self:
        _ = self.value  # its own checks are those of its numbers
        return self


def _table_of(made: type) -> Any:
    kinds = get_annotations(made, eval_str=True)
    found: dict[str, Any] = {one.name: (kinds[one.name], one.default) for one in fields(made)}
    found["made"] = (ClassVar[Any], made)
    return create_model(made.__name__, __base__=_ValueTable, **found)


class ServerTable(_table_of(ServerOptimizer)):  # type: ignore[misc]
    """``[federation.server]``: the server's step along the mean of a round's updates."""


class RobustTable(_table_of(Robust)):  # type: ignore[misc]
    """``[federation.robust]``: the (robust) mean of a round's updates."""


class DelayTable(_table_of(Delay)):  # type: ignore[misc]
    """``[federation.delay]``: the largest lead of a client's round over the newest model."""


class SizesTable(_table_of(Sizes)):  # type: ignore[misc]
    """``[federation.sizes]``: the rule by which clients choose sample sizes within a filter."""


class FederationSection(HoldersSection):
    """The settings of a federation apart from data, model, budget and training.

    ``rounds`` are global rounds (of each client, where updates are asynchronous). ``local_rounds``
    are private rounds (steps) in one global round, or a list with one number for each of a client's
    first updates, whose last number holds for all later updates. ``local_epochs`` gives the same in
    passes over the client's own records. ``growth`` is the last sample size over the first.
    ``phases`` is a number of phases that share one budget, with decreasing noise (``shrink`` times
    that of the phase before), or a list with ε of each phase, each with its own budget.

    For simulations: ``fused`` (one private sum per cohort: the global model has the same
    distribution at the cost of one machine, and clients get no statements).
    """

    kind = "federation"
    member = "client"

    clients: _Int | None = Field(default=None, ge=1)
    client: tuple[ClientTable, ...] = ()
    phases: Annotated[int, Field(strict=True, ge=2)] | tuple[_Float | _Int, ...] | None = None
    shrink: _Float = Field(default=0.85, gt=0, lt=1)
    sizes: SizesTable | None = None
    local_rounds: Annotated[LocalRounds, PlainValidator(local_rounds_of)] | None = None
    local_epochs: _Float | None = Field(default=None, gt=0)
    rule: Rule = "synchronous"
    exchanged: Exchanged | None = None
    cohort: _Int | None = Field(default=None, ge=1)
    absence: _Float | None = Field(default=None, gt=0)
    resend: _Float = Field(default=5.0, gt=0)
    cadence: _Float | None = Field(default=None, gt=0)
    refreshes: _Int = Field(default=0, ge=0)
    growth: _Float = Field(default=1.0, ge=1, le=1000)
    delay: DelayTable = DelayTable()
    server: ServerTable = ServerTable()
    robust: RobustTable = RobustTable()
    secure: dict[str, Any] | None = None
    address: str | None = None
    fused: bool = False

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.local_rounds is not None and self.local_epochs is not None:
            raise ValueError("give local_rounds (steps) or local_epochs, not both")
        count = self.phases if isinstance(self.phases, int) else len(self.phases or ())
        if self.phases is not None and (count < 2 or self.growth != 1):
            raise ValueError(
                "phases = 3, or a list of two or more epsilons, goes without growth: leave it out"
            )
        own = [number for table in self.client for number in table.phases or ()]
        if (own and max(own) > count) or any(table.phases == () for table in self.client):
            raise ValueError(f"a client's phases are numbers from 1 to phases = {self.phases}")
        if any(table.name == SERVER_NAME for table in self.client):
            raise ValueError("a client cannot have the server's name, 'server': give it another")
        if self.weights != "size" and (self.rule != "synchronous" or self.secure is not None):
            raise ValueError("weights goes with rule 'synchronous' without secure: leave it out")
        return self


class OutageTable(_Section):
    """One ``[[gossip.outage]]`` of a simulation: the absence of a worker, in virtual seconds."""

    worker: str
    begin: _Float = Field(ge=0)
    end: _Float | None = Field(default=None, gt=0)


class GossipSection(HoldersSection):
    """The settings of a gossip apart from data, model, budget and training.

    ``rounds`` are R: all together make workers · R updates, and each plans ``headroom`` times R.
    ``weights`` are those of the workers' steps, "equal" in the paper.
    ``exchanges`` are mixing steps per round, under the synchronous rule. ``edges`` is a file with
    the graph, ``matrix`` one with the mixing. ``compression`` of exchanged weights is "none",
    "bf16" or "top-k:0.1" (the share that is sent). Neighbours' weights above ``largest`` are
    refused, and ``difference`` limits how far a neighbour moves a worker. Gradients are taken at
    ``point``: the worker's "own" weights, as in the paper, or its estimate of the "average".
    ``stagger`` and ``clock`` are those of :class:`~forethought.gossip.gossip.Gossip`.

    For simulations: ``case`` (the paper's "I", "II", "III"), ``hiccup`` (factor on the time of one
    worker, drawn anew in every round), ``trace`` (a file of factors), ``exchange`` (seconds between
    exchanges), ``deadline``.
    """

    kind = "gossip"
    member = "worker"

    workers: _Int | None = Field(default=None, ge=2)
    worker: tuple[WorkerTable, ...] = ()
    headroom: _Float = Field(default=1.1, ge=1, le=10)
    rule: Literal["asynchronous", "synchronous", "allreduce"] = "asynchronous"
    graph: GraphKind = "complete"
    degree: _Int | None = Field(default=None, ge=1)
    edges: str | None = None
    mixing: MixingKind = "matchings"
    matrix: str | None = None
    exchanges: _Int = Field(default=1, ge=1)
    momentum: _Float = Field(default=0.0, ge=0, lt=1)
    tracking: bool = False
    largest: _Float = Field(default=1e6, gt=0)
    difference: _Float | None = Field(default=None, gt=0)
    compression: str = "none"
    window: _Int = Field(default=4, ge=1)
    settle: _Int = Field(default=10, ge=0)
    point: Literal["average", "own"] = "average"
    pause: _Int = Field(default=0, ge=0)
    stagger: bool | None = None
    clock: Literal["own", "all"] = "own"
    case: Literal["I", "II", "III"] | None = None
    hiccup: _Float = Field(default=1.0, ge=1)
    trace: str | None = None
    exchange: _Float | None = Field(default=None, gt=0)
    outage: tuple[OutageTable, ...] = ()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.edges is not None and (self.graph != "complete" or self.degree is not None):
            raise ValueError("edges is a graph of its own: leave graph and degree out")
        if self.case == "II" and (self.slow or self.speeds is not None):
            raise ValueError("case II is one worker ten times slower: leave slow and speeds out")
        if sum((self.hiccup > 1, self.trace is not None, self.case == "I")) > 1:
            raise ValueError("give one of hiccup, trace and case I")
        return self


# A job: the data, the model, the budget and the training. The planner chooses what it leaves out.


ROWS_OF_A_PERSON = 4  # number of rows of a person that are kept by default


class JobError(ValueError):
    """A job file that cannot be used; the message names the file, the line and what to do."""


# Strict types: "2" and true are refused as numbers.
_Number = _Int | _Float
_Fixed = Literal[
    "scattering", "patches", "deep-patches", "shifted-patches", "handwriting", "deskewed"
]
_Features = _Fixed | Literal["auto", "pixels"]


def _key(help: str, default: Any = None, **rules: Any) -> Any:
    """A field with its text in docs/jobs.md, ``help``."""
    return Field(default=default, description=help, **rules)


# Keys of [data] on the form of a table's text, and on its rows.
_FORM = ("separator", "decimal", "encoding", "comment", "header")
_ROWS = ("missing", "target_range", "person", "missing_label")


class DataSection(_Section):
    """The source of the training data, and the declarations about it.

    The keys from ``columns`` on are for tables with declared columns.
    """

    source: str = Field(description="A named data set, or csv:FILE, parquet:, excel:, npz:, …")
    folder: Path | None = _key("Folder of a named data set's files.")
    label: str | tuple[str, ...] | None = _key("The label's column; of several labels a list.")
    test: str | None = _key("A file of its own for testing, in place of holdout.")
    holdout: _Float | None = _key("Share held out, in the mean. Default: 0.2.", gt=0, lt=1)
    split_by: str | None = _key(
        "Column whose rows of one value stay on one side; no feature.", min_length=1
    )
    task: Literal["classification", "regression", "multilabel"] | None = _key(
        "What the label is. Default: the label says, and the Statement says that."
    )
    classes: tuple[StrictInt | StrictFloat | str, ...] | None = _key(
        "The classes, class 0 first. Default: the same."
    )
    features: Annotated[StrictInt, Field(ge=1)] | _Features | None = _key(
        "Number of features, declared; or what images are replaced by. Default: by their shape."
    )
    standardise: Literal["private", "quantiles"] | tuple[_Float, _Float] | None = _key(
        "Means and variances, or quantiles, released first; or a public mean and deviation."
    )
    bounds: tuple[_Float, _Float] | None = _key("Where features lie, for a released one.")
    columns: dict[str, Any] | None = _key("Every column of a table: [data.columns].")
    columns_measured: bool = _key(
        "True if they were taken from the file, as init does; the Statement says so.", False
    )
    missing: Literal["refuse", "middle", "category", "drop-column"] | None = _key(
        "Meaning of a missing entry, where a column does not say; `drop-column` is of one column. "
        "Default: `refuse`."
    )
    missing_label: Literal["refuse", "drop"] | None = _key(
        "Whether a row without a label is left out. Default: `refuse`."
    )
    target_range: tuple[_Number, _Number] | None = _key(
        "Lowest and highest value of a regression's target."
    )
    prevalence: tuple[_Number, ...] | None = _key(
        "Share of each class among such records, known without them, class 0 first."
    )
    separator: str | None = _key("Between entries of a text. Default: a comma.")
    decimal: str | None = _key("Between a number and its fraction. Default: a point.")
    encoding: str | None = _key("Of a text. Default: utf-8.")
    comment: str | None = _key("Start of lines that are passed over.")
    header: bool | None = _key("False if a text's first line holds no names.")
    person: str | None = _key(
        "Column that says whose a row is: ε then protects persons.", min_length=1
    )
    records_per_person: _Int | None = _key(
        f"Rows of one person that are kept. Default: {ROWS_OF_A_PERSON} with person.", ge=1
    )

    def preparation(self, features: int | None) -> Preparation | None:
        """The private release by which inputs are standardised; None where the job asks for none.

        Args:
            features: number of features or channels of the loaded data; None: no data are loaded.

        Raises:
            JobError: a deviation that is not above 0, no bounds, or no data.
        """
        if isinstance(self.standardise, tuple) and not self.standardise[1] > 0:
            raise JobError(
                f"standardise = {list(self.standardise)}: the second number is a deviation, above 0"
            )
        if self.standardise is None and self.bounds is not None:
            raise JobError("bounds go with [data] standardise: add it, or leave bounds out")
        if self.standardise not in ("private", "quantiles"):
            return None
        if self.bounds is None:
            raise JobError(
                f"standardise = {self.standardise!r} needs bounds = [low, high] in [data]: where "
                "features lie, known without the private data"
            )
        if features is None:
            raise JobError("standardise needs the data: plan from the job file where they are")
        return Preparation(
            ("moments" if self.standardise == "private" else "quantiles",), self.bounds, features
        )

    @property
    def most_of_one_person(self) -> int:
        """The largest number of records of one person."""
        if self.records_per_person is None:
            return 1 if self.person is None else ROWS_OF_A_PERSON
        return self.records_per_person

    def table_schema(self) -> TableSchema | None:
        """The declaration of the columns; None where nothing is declared.

        Raises:
            JobError: a key that needs declared columns, where none are declared.
            forethought.data.DataError: a declaration that cannot be used.
        """
        given = self.model_dump(exclude_none=True)
        form = {name: given[name] for name in _FORM if name in given}
        rows = {name: given[name] for name in _ROWS if name in given}
        if self.columns is None:
            for name in (*rows, *form):
                raise JobError(
                    f"[data] {name} goes with [data.columns], which forethought init FILE writes"
                )
            return None
        from forethought.data.columns import TableSchema
        from forethought.data.files import TableFormat

        if self.person is not None:
            rows["records_per_person"] = self.most_of_one_person

        return TableSchema(
            self.columns, measured=self.columns_measured, form=TableFormat(**form), **rows
        )


class PredictSection(_Section):
    """The use of a classifier's outputs: in predictions, in the report, in exports.

    ``prevalence`` is the share of each class where the model is used, class 0 first; ``[data]
    prevalence`` is that of the training data. ``costs`` has for each class the cost of a wrong
    answer for one of its records: the model then gives the answer of least expected cost instead of
    the likeliest one.
    """

    prevalence: tuple[_Number, ...] | None = None
    costs: tuple[Annotated[_Number, Field(gt=0)], ...] | None = None


class ModelSection(_Section):
    """The network: a name of the zoo or ``module:function``; the other keys are its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "linear"

    @property
    def options(self) -> dict[str, Any]:
        """The options that are passed to the model's builder."""
        return dict(self.model_extra or {})

    @property
    def linear(self) -> bool:
        """True if the model is linear in its features; an additive model adds features itself."""
        return self.name in ("linear", "additive")


_STRICT = {float: _Float, int: _Int, bool: StrictBool}
_BOUNDS = {"above": "gt", "least": "ge", "below": "lt", "most": "le"}


def _keys_of(section: str) -> Any:
    """A section with its keys from the table of options."""
    found: dict[str, Any] = {}
    for name, option in keys(section).items():
        kind = option.row.key or _STRICT.get(option.kind, option.kind)
        bounds: dict[str, Any] = {_BOUNDS[end]: value for end, value in option.range.items()}
        if tuple[float, ...] in (option.kind, *get_args(option.kind)):
            numbers = tuple[Annotated[_Number, Field(**bounds)], ...]
            words = [part for part in get_args(kind) if get_origin(part) is Literal]
            kind, bounds = reduce(or_, words, numbers), {}
        kind = kind | None if option.optional else kind
        found[name] = (kind, Field(default=option.default, **bounds))
    return create_model(section, __base__=_Section, **found)


class BudgetSection(_keys_of("budget")):  # type: ignore[misc]
    """The wanted guarantee. δ is by default 1/(10 · examples), where examples are always rows."""


class TrainingSection(_keys_of("training")):  # type: ignore[misc]
    """The training. The planner chooses the keys that are left out."""


class RunSection(_Section):
    """Settings of the execution.

    Of these only the seeds concern the guarantee: a person who knows them can subtract the noise.
    """

    seed: _Int | None = None
    noise_seed: _Int | None = None
    micro_batch: _Int | None = Field(default=None, ge=1)
    device: str | None = None
    threads: _Int | None = Field(default=None, ge=1)
    checkpoint_every: _Int | None = Field(default=None, ge=1)
    metrics: tuple[str, ...] | None = None


class LedgerSection(_Section):
    """The ledger whose budget the run spends: all that the run can release is reserved first.

    ``token_file`` is for a service (https://…). ``partition`` declares that only records of one
    part are used: "site=A". ``also`` names other accounts of persons who are in these data; they
    are charged, too. ``identity`` is the file of the key by which records and persons are
    recognised.
    """

    url: StrictStr
    data: StrictStr
    purpose: StrictStr | None = _Line
    token_file: Path | None = None
    partition: StrictStr | None = None
    also: tuple[StrictStr, ...] = ()
    identity: Path | None = None

    @field_validator("url")
    @classmethod
    def _without_password(cls, value: str) -> str:
        # A job is stored in its run folder, which may be passed on.
        from forethought.ledger.paid_run import Ledger

        if Ledger(value, "").without_password().url != value:
            raise ValueError("has a password in it: leave it to PGPASSWORD or ~/.pgpass")
        return value


# Keys of [data] that are the loader's options as they are.
_LOADED = ("label", "holdout", "test", "task", "classes", "split_by")
# Keys of [training] → the key that says what uses them, its usual value, and those that do.
_USED_BY = {
    "decay": ("schedule", "constant", ("inverse", "inverse-sqrt", "stages", "drops")),
    "averaging_decay": ("averaging", "exponential", ("exponential",)),
    "averaging_fraction": ("averaging", "exponential", ("tail",)),
}


class Job(_Section):
    """A whole request: ``Job.load(path)`` from a TOML file, ``Job(**tables)`` from Python.

    Raises:
        JobError: from :meth:`load`, with the file, the line and the most similar known key.
        pydantic.ValidationError: from the constructor.
    """

    data: DataSection
    model: ModelSection = ModelSection()
    budget: BudgetSection = BudgetSection()
    training: TrainingSection = TrainingSection()
    run: RunSection = RunSection()
    predict: PredictSection = PredictSection()
    about: AboutSection = AboutSection()
    ledger: LedgerSection | None = None
    statistics: tuple[dict[str, Any], ...] | None = None
    federation: FederationSection | None = None
    gossip: GossipSection | None = None

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """Read a job file.

        Raises:
            JobError: no such file, no TOML, an unknown key or a value that is not allowed.
        """
        return from_file(Path(path)).job

    def load_data(self, folder: Path | None = None) -> Dataset:
        """The data set that the job names.

        Args:
            folder: folder of the files, in place of the job's own.

        Raises:
            forethought.data.DataError: missing, damaged or unsuitable data.
        """
        from forethought.data.sources import load

        section = self.data
        return load(
            section.source,
            folder=folder or section.folder,
            features=self.features,
            site=self._site,
            schema=section.table_schema(),
            **{name: getattr(section, name) for name in _LOADED},
        )

    @property
    def payer(self) -> Ledger | None:
        """The ledger whose budget the job's runs spend; None: the job names none."""
        from forethought.ledger.paid_run import Ledger

        if self.ledger is None:
            return None
        purpose = self.ledger.purpose or self.about.purpose or ""
        return Ledger(**{**self.ledger.model_dump(), "purpose": purpose})

    def recognise(self, folder: Path | None, dataset: Dataset | None = None) -> None:
        """Ask the job's ledger whether another data set has the job's records or persons.

        A table is compared as it is in its file, before the job's encoding; other data as loaded.
        The records of ``[data] test`` are compared, too.

        Args:
            folder: as for :meth:`load_data`. dataset: the loaded data set; None: only the table of
                ``source`` is compared.

        Raises:
            forethought.errors.BookError: another one has, and ``[ledger] also`` does not name it.
        """
        payer, section = self.payer, self.data
        if payer is None or payer.identity is None:
            return
        import polars as pl

        from forethought.ledger.identity import contents

        table = self.table(folder)
        if table is not None:
            paths = [table.path] if dataset is None else self.files(folder)
            read = (replace(table, path=path).pieces() for path in paths)
            frames = [pl.concat(pieces, how="vertical_relaxed") for pieces in read]
            whose = None
            if section.person is not None:  # which goes without a test file
                whose = contents(frames[0].select(pl.col(section.person).alias("person")))
            payer.recognise([one for frame in frames for one in contents(frame)], whose)
        elif dataset is not None:
            parts = [part for part in (dataset.train, dataset.test) if part is not None]
            pairs = [zip(part.inputs, part.targets, strict=True) for part in parts]
            payer.recognise([x.tobytes() + y.tobytes() for rows in pairs for x, y in rows])

    def table(self, folder: Path | None) -> Table | None:
        """The table that ``[data] source`` names; None: it names other data.

        Args:
            folder: as for :meth:`load_data`.

        Raises:
            forethought.data.DataError: no such file.
        """
        from forethought.data.files import AS_USUAL, TABLES, Table, resolve

        kind, _, name = self.data.source.partition(":")
        if kind not in TABLES:
            return None
        schema = self.data.table_schema()
        path = resolve(name, folder or self.data.folder)
        return Table(path, kind, AS_USUAL if schema is None else schema.form)

    def files(self, folder: Path | None) -> list[Path]:
        """The user's own files that ``[data]`` names: of the records, and of a test part.

        Args:
            folder: as for :meth:`load_data`.
        """
        from forethought.data.files import resolve

        named = (self.data.source.partition(":")[2], self.data.test)
        return [resolve(name, folder or self.data.folder) for name in named if name]

    @property
    def features(self) -> int | str | None:
        """``[data] features``; ``"auto"`` where the job leaves images and model to the planner.

        It does so if it sets no features, standardisation, model, holders or augmentation, and no
        step size, feature norm or centring, which would be meant for pixels.
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
        """The column with the client or worker that holds each record; None: there is none."""
        holders = self.federation or self.gossip
        how, _, column = (holders.shares if holders else "").partition(":")
        return column or None if how == "column" else None

    def with_(self, section: str, **values: Any) -> Job:
        """The job with other values of some keys of a section."""
        changed = getattr(self, section).model_copy(update=values)
        return self.model_copy(update={section: changed})

    def without_ranges(self) -> Job:
        """The job with ``ranges = false`` in ``[training]``, unless it asks for them."""
        return self if self.training.ranges else self.with_("training", ranges=False)

    def budget_of(self, examples: int) -> Budget | None:
        """The budget for ``examples`` records; None: the job gives no ε."""
        from forethought.planning import defaults

        if self.budget.epsilon is None:
            return None
        return Budget(self.budget.epsilon, self.budget.delta or defaults.default_delta(examples))

    def plan_request(
        self,
        examples: int,
        parameters: int | None = None,
        features: int | None = None,
        persons: int | None = None,
    ) -> PlanRequest:
        """The job's request to the planner.

        Args:
            examples: number of training records. parameters: number of trained weights, if known.
            features: number of features or channels of the loaded data, for a preparation of them.
            persons: number of different persons in the data, if known.

        Raises:
            JobError: augmentations of features that are no pixels, or a key that nothing would
                use; see also :meth:`DataSection.preparation`.
            forethought.planning.solve.PlanError: keys that contradict each other.
        """
        from forethought.planning.plan_request import PlanRequest

        examples = whole("examples", examples)
        asked = self.training
        altered = asked.augment is not None or asked.augmentations is not None
        if altered and isinstance(self.data.features, str) and self.data.features != "pixels":
            raise JobError(
                f"augmentations alter pixels, the features are {self.data.features!r}: drop either"
            )
        alone = asked.person_as == "group" and self.data.most_of_one_person == 1
        # As one contribution rows must be told apart; numbers alone have no rows.
        apart = self.data.person is not None or self.data.source == "none"
        if alone or (asked.person_as == "contribution" and not apart):
            raise JobError(
                f"person_as = {asked.person_as!r} goes with persons of several rows: declare "
                "[data] person (or for 'group' records_per_person), or leave it out"
            )
        budget = self.budget_of(examples)
        given: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {"schedule": {}, "averaging": {}}
        for name, option in keys("training").items():
            value = getattr(asked, name)
            if option.row.linear and value is not None and not self.model.linear:
                raise JobError(
                    f"[training] {name} goes with a linear model, not {self.model.name!r}: drop it"
                )
            if option.row.part is not None and value is not None:
                parts[option.row.part[0]][option.row.part[1]] = value
            elif name in table():
                given[name] = value
        for name, (chosen, usual, users) in _USED_BY.items():
            if getattr(asked, name) is not None and (getattr(asked, chosen) or usual) not in users:
                raise JobError(
                    f"[training] {name} goes with {chosen} = {' or '.join(map(repr, users))}"
                )
        for part, kind in (("schedule", Schedule), ("averaging", Averaging)):
            given[part] = kind(**parts[part]) if parts[part] else None
        return PlanRequest(
            examples=examples,
            parameters=parameters,
            budget=budget,
            delta=self.budget.delta if budget is None else None,
            preparation=self.data.preparation(features),
            records_per_person=self.data.most_of_one_person,
            persons=persons,
            **given,
        )

    def make_plan(self, examples: int, parameters: int | None = None) -> Plan:
        """The plan that the job asks for.

        Args:
            examples, parameters: as for :meth:`plan_request`.

        Raises:
            forethought.planning.solve.PlanError: too much or too little is given.
        """
        from forethought.planning.solve import plan

        return plan(self.plan_request(examples, parameters))

    def build_model(self, dataset: Dataset) -> nn.Module:
        """The model that the job names, shaped for ``dataset``.

        Raises:
            ValueError: no such model, or options it does not have.
        """
        from forethought.models import build

        classes, seed = dataset.classes or 1, self.run.seed
        own = self.model
        return build(own.name, inputs=dataset.shape, classes=classes, seed=seed, **own.options)

    @classmethod
    def parse(cls, text: str, name: str = "job") -> Job:
        """Read a job from TOML text; errors call it ``name``.

        Raises:
            JobError: as for :meth:`load`.
        """
        if text.lstrip().startswith("{"):
            raise JobError(
                f"{name} is JSON, not a job: a job is a TOML file. A saved plan goes with "
                "train JOB --plan PLAN, and account PLAN says what it guarantees"
            )
        try:
            tables = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise JobError(f"{name} is no TOML file: {error}") from None
        return _validated(tables, name, text)


# Tables as TOML text: the standard library reads TOML and does not write it.


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(tables: Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]]) -> str:
    """Tables of plain values (text, numbers, truth values, lists and mappings of them) as TOML.

    A sequence of tables is an array of them.

    >>> print(to_toml({"data": {"source": "digits"}, "model": {"hidden": [32, 16]}}), end="")
    [data]
    source = "digits"
    <BLANKLINE>
    [model]
    hidden = [32, 16]
    """
    sections = []
    for name, found in tables.items():
        head = toml_key(name)
        head = f"[{head}]" if isinstance(found, Mapping) else f"[[{head}]]"
        for values in (found,) if isinstance(found, Mapping) else found:
            if values:
                rows = [f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items()]
                sections.append("\n".join([head, *rows]))
    return "\n\n".join(sections) + "\n"


def toml_key(name: str) -> str:
    """A TOML key, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else toml_value(name)


def toml_value(value: Any) -> str:
    """A TOML value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    # The escapes of JSON are valid in TOML, but JSON does not escape the control character DEL.
    text = json.dumps(value if isinstance(value, bool) else str(value), ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")


# A request: a job with the text it was read from, from a file, from flags or from a run folder.


JOB_NAME = "job.toml"
SEEDS = ("seed", "noise_seed")
# A line of forethought init that asks whether a column, its only group, says whose a row is.
PERSON = re.compile(r"(?m)^#\s*person\s*=\s*[\"']?([^\"'#\n]+).*$")
# Each key replaces the other one.
_INSTEAD = {"epochs": "rounds", "rounds": "epochs"}


@dataclass(frozen=True)
class JobRequest:
    """A job with the text it was read from.

    Args:
        name: of the job, for its run folder.
        text: of the file; "" for a request without a file.
        job: the job.
        overrides: the changes by the command line, in words.
        folder: folder of the file; the user's own model may be a module there.
        settled: the choices of this version for keys that the file leaves out, in words.
    """

    name: str
    text: str
    job: Job
    overrides: tuple[str, ...] = ()
    folder: Path | None = None
    settled: tuple[str, ...] = ()

    @property
    def question(self) -> str | None:
        """The open question of ``forethought init`` in the file: do persons have several rows?

        None where the file has no such question, or it is answered.
        """
        found = PERSON.findall(self.text)
        if self.job.data.person is not None or self.job.data.most_of_one_person > 1 or not found:
            return None
        names = ", ".join(dict.fromkeys(name.strip() for name in found))
        return (
            f"are several rows about one person ({names})? ε is about one row as the file stands: "
            "take the # before person = away, or delete that line if each row is somebody else"
        )

    @property
    def aside(self) -> tuple[str, ...]:
        """Parts of the file, and a promise, that training one model leaves out, in words."""
        job, found = self.job, []
        if job.run.noise_seed is not None:
            found.append("any guarantee: whoever knows noise_seed can subtract the noise; drop it")
        if job.statistics:
            found.append("[[statistics]]: forethought release releases them, at an ε of their own")
        for name, command in (("federation", "federate"), ("gossip", "gossip")):
            if getattr(job, name) is not None:
                own = f"[{name}]: forethought {command} plans and runs it"
                found.append(f"{own}; this is one model of all records together")
        return tuple(found)

    def choosing(self, section: str, key: str, value: Any, why: str) -> JobRequest:
        """The request with the value that was chosen for a key, and the reason for it."""
        settled = (*self.settled, f"{key} = {toml_value(value)}: {why}")
        return replace(self, job=self.job.with_(section, **{key: value}), settled=settled)

    def released_text(self) -> str:
        """The job as a TOML text that may be published, without its seeds and comments.

        A run folder may be passed on. A person who knows a seed can subtract the noise, and the
        comments of ``forethought init`` count records.
        """
        tables = self.job.model_dump(exclude_unset=True, exclude_none=True)
        tables["run"] = {k: v for k, v in tables.get("run", {}).items() if k not in SEEDS}
        return "# As it was run; seeds and comments are left out.\n" + to_toml(tables)


def from_file(path: Path) -> JobRequest:
    """Read a job file; raises as :meth:`Job.load` does."""
    from forethought.data.files import ENDINGS

    if path.is_dir():
        raise JobError(f"{path} is a folder: give a job file, such as {path / JOB_NAME}")
    if path.suffix.lower() in ENDINGS.keys() - {".txt", ".data"}:  # a job may be called so
        raise JobError(
            f"{path} is data, not a job: forethought init {path} writes a job for a table"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        others = sorted(one.name for one in path.parent.glob("*.toml"))[:20]
        hint = f"; {suggestion(path.name, others)}" if others else ""
        raise JobError(f"no job file {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"cannot read the job file {path}: {error}") from None
    return JobRequest(path.stem, text, Job.parse(text, str(path)), folder=path.parent)


def built_in(name: str) -> JobRequest:
    """A built-in job on scikit-learn's handwritten digits.

    Args:
        name: ``demo`` (ε = 3), ``federated_demo`` (ten clients, one of them slow, asynchronous) or
            ``gossip_demo`` (eight workers, one of them slow).
    """
    text = resources.files("forethought").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return JobRequest(name, text, Job.parse(text, f"{name}.toml"))


def resumed(folder: Path) -> JobRequest:
    """The job of a run folder, as it was run. Raises JobError when the folder holds none."""
    path = folder / JOB_NAME
    if not path.is_file():
        raise JobError(
            f"{folder} holds no interrupted run that can be resumed: there is no {JOB_NAME} in it"
        )
    # The file has all choices of the run; a file without them is of an older version, which made
    # none.
    return replace(as_given(from_file(path)), name=folder.name)


def as_given(request: JobRequest) -> JobRequest:
    """The request with inputs as they are, where the planner would choose features or ranges."""
    job = request.job.without_ranges()
    if job.data.features is None and job.features is not None:
        job = job.with_("data", features="pixels")
    if job.training.basis == "auto":
        job = job.with_("training", basis="none")
    return replace(request, job=job)


def from_numbers(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    records_per_person: int | None = None,
    **training: Any,
) -> JobRequest:
    """A request without data, from a budget and keys of ``[training]``; values None are left out.

    Raises:
        JobError: an unknown key or a value that is not allowed.
    """
    tables = {
        "data": without_none({"source": "none", "records_per_person": records_per_person}),
        "budget": without_none({"epsilon": epsilon, "delta": delta}),
        "training": without_none(training),
    }
    return JobRequest("", "", _validated(tables))


def overridden(request: JobRequest, flags: Mapping[str, Any]) -> JobRequest:
    """The request with flags in place of its file's values, and each change in words.

    Args:
        flags: keys of ``[budget]`` and ``[training]``; values None are left out. ``epochs``
            replaces ``rounds`` and the reverse.

    Raises:
        JobError: a value that is not allowed.
    """
    tables = request.job.model_dump(exclude_unset=True)
    changes = []
    for key, value in without_none(flags).items():
        section = tables.setdefault("budget" if key in keys("budget") else "training", {})
        old = section.get(key)
        instead = section.pop(_INSTEAD[key], None) if key in _INSTEAD else None
        section[key] = value
        if instead is not None:
            changes.append(f"{key} {value} in place of {_INSTEAD[key]} {instead}")
        elif old is None:
            changes.append(f"{key} {value}, which the file leaves out")
        elif old != value:
            changes.append(f"{key} {value} in place of {old}")
    if not changes:
        return request
    return replace(request, job=_validated(tables), overrides=(*request.overrides, *changes))


def paying(request: JobRequest, ledger: str | None) -> JobRequest:
    """The request with another ledger than its file's.

    Args:
        ledger: its address, with ``#`` and the account's name where the file names none, and with
            ``+`` before each further account that is charged. None: the request as it is.

    Raises:
        JobError: no account is named.
    """
    if ledger is None:
        return request
    url, _, data = ledger.partition("#")
    tables = request.job.model_dump(exclude_unset=True)
    section = tables.setdefault("ledger", {})
    section["url"] = url if "://" in url else f"sqlite:///{url}"
    if data:
        section["data"], *also = data.split("+")
        section.update({"also": tuple(also)} if also else {})
    if "data" not in section:
        raise JobError(
            f"--ledger {ledger} names no account: add it, as in {url}#patients, or [ledger] data"
        )
    change = f"paid by {section['data']!r} in {section['url']}"
    return replace(request, job=_validated(tables), overrides=(*request.overrides, change))


def _validated(tables: Mapping[str, Any], name: str = "", text: str = "") -> Job:
    """The job of these tables; errors name the place in ``text``, which has the name ``name``."""
    try:
        return Job.model_validate(tables)
    except ValidationError as error:
        raise JobError(explain_errors(name, text, error.errors())) from None
