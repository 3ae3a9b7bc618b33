"""Augmentation multiplicity, as a value: several altered copies of a record make one contribution.

De, Berrada, Hayes, Smith and Balle (2022), Section 3: the gradients of K augmentations of a record
are averaged *before* clipping. Their mean is a function of that record and of random numbers that
no record decides, so the sensitivity of a round's sum is what it was and ε does not change.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

from forethought.values.checks import one_of, real, whole
from forethought.values.mechanism import Clipping
from forethought.values.serialisation import build

AugmentationKind = Literal["mirror", "flip", "shift", "crop"]
MOST_COPIES = 1024


@dataclass(frozen=True)
class Augmentation:
    """The altered copies of an image: how many enter, and how each is altered, independently at
    random.

    Args:
        copies: K, the copies of a record whose mean gradient is its contribution.
        kinds: ``"mirror"``: left and right are exchanged with probability 1/2; ``"flip"``: top and
            bottom; ``"shift"``: moved by a whole number of pixels each way, uniformly, what is
            uncovered reflected at the edge (padding by reflection and a crop of the old size, as
            De et al. do); ``"crop"``: a window with a share of both sides, enlarged
            to the old size bilinearly.
        pixels: the farthest that ``"shift"`` moves. None: an eighth of the shorter side (4 of 32).
        least: the least share of a side that ``"crop"`` keeps.

    Raises:
        ValueError, TypeError: no such kind, one twice, or a number outside its range.
    """

    copies: int = 8
    kinds: tuple[AugmentationKind, ...] = ("mirror", "shift")
    pixels: int | None = None
    least: float = 0.75

    def __post_init__(self) -> None:
        copies = whole("augmentations", self.copies, most=MOST_COPIES)
        object.__setattr__(self, "copies", copies)
        kinds = (self.kinds,) if isinstance(self.kinds, str) else tuple(self.kinds)
        for kind in kinds:
            one_of("augment", kind, get_args(AugmentationKind))
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError(
                f"augment names each kind once, and at least one of "
                f"{', '.join(get_args(AugmentationKind))}: not {list(kinds)}"
            )
        object.__setattr__(self, "kinds", kinds)
        if self.pixels is not None:
            object.__setattr__(self, "pixels", whole("pixels of augment", self.pixels))
            if "shift" not in kinds:
                raise ValueError("pixels= says how far 'shift' moves: add that kind, or drop it")
        real("least of augment", self.least, above=0, most=1)

    @classmethod
    def of(cls, asked: object, copies: int | None = None) -> Augmentation | None:
        """An augmentation from one of these, from names of kinds, or from the fields by name; and
        K.

        Raises:
            ValueError, TypeError: none of these, or K twice.
        """
        if asked is None and copies is None:
            return None
        if isinstance(asked, Augmentation):
            if copies is not None:
                raise ValueError("augmentations= is said in augment= already: drop one of them")
            return asked
        number: dict[str, Any] = {} if copies is None else {"copies": copies}
        if asked is None:
            return cls(**number)
        if isinstance(asked, Mapping):
            unknown = sorted(set(asked) - {"copies", "kinds", "pixels", "least"})
            if unknown or (number and "copies" in asked):
                raise ValueError(
                    "augment takes kinds, pixels and least, and the number of copies once: not "
                    f"{', '.join(map(repr, unknown)) or 'copies beside augmentations'}"
                )
            return cls(**{**number, **asked})
        if isinstance(asked, str) or (
            isinstance(asked, Sequence) and all(isinstance(kind, str) for kind in asked)
        ):
            return cls(**number, kinds=asked)  # type: ignore[arg-type]
        raise TypeError(
            'augment must be names of kinds such as ["mirror", "shift"], or a '
            f"forethought.Augmentation, not {asked!r}"
        )

    def describe(self) -> str:
        """In a few words: how many copies, altered how."""
        kinds = {"mirror": "mirrored", "flip": "flipped", "shift": "shifted", "crop": "cropped"}
        return f"{self.copies} copies, {', '.join(kinds[kind] for kind in self.kinds)} at random"


# Local updates: an optimization algorithm that runs inside one contribution, as a value.


@dataclass(frozen=True)
class Inner:
    """An inner optimizer; every one steps coordinate by coordinate.

    Args:
        home: torch.optim's class. preset: options that the name is short for.
        options: those that may be given. rate: its usual step size.
        along: whether its steps are sums of gradients, so that they lie along their mean.
        decoupled: whether weight decay is a step of its own, no part of the gradient.
    """

    home: str
    preset: Mapping[str, Any]
    options: tuple[str, ...]
    rate: float
    along: bool
    decoupled: bool


_OF_ADAM = ("betas", "eps", "amsgrad", "weight_decay")
_OF_ADAGRAD = ("lr_decay", "eps", "initial_accumulator_value", "weight_decay")
_OF_RMSPROP = ("alpha", "eps", "momentum", "centered", "weight_decay")
_OF_SGD = ("momentum", "dampening", "nesterov", "weight_decay")
_NONE = {"weight_decay": 0.0}
INNER: dict[str, Inner] = {
    "sgd": Inner("SGD", {}, _OF_SGD, 0.1, True, False),
    "momentum": Inner("SGD", {"momentum": 0.9}, (*_OF_SGD[:2], "weight_decay"), 0.1, True, False),
    "nesterov": Inner(
        "SGD", {"momentum": 0.9, "nesterov": True}, ("momentum", "weight_decay"), 0.1, True, False
    ),
    "adam": Inner("Adam", _NONE, _OF_ADAM, 1e-3, False, False),
    "adamw": Inner("AdamW", {"weight_decay": 0.01}, _OF_ADAM, 1e-3, False, True),
    "adagrad": Inner("Adagrad", _NONE, _OF_ADAGRAD, 1e-2, False, False),
    "rmsprop": Inner("RMSprop", _NONE, _OF_RMSPROP, 1e-2, False, False),
}
MOST_PASSES = 10_000


@dataclass(frozen=True)
class Local:
    """The algorithm that runs inside a group, from the round's weights and with fresh state.

    Args:
        optimizer: ``"sgd"``, ``"momentum"``, ``"nesterov"``, ``"adam"``, ``"adamw"``,
            ``"adagrad"`` or ``"rmsprop"``: torch.optim's own, by name.
        learning_rate: its step size. Default: 0.1, or torch's own for the adaptive ones.
        options: pairs of its other options, such as ``momentum``, ``betas``, ``weight_decay``.
        passes: over the group's records, each in an order of its own.
        step: records in an inner step, the last of a pass may have fewer. None: the whole group.
        function: ``"module:function"``, or such a function itself, in place of all of the above:
            ``function(model, (inputs, targets))`` returns the weight change by parameter name. It
            is a module's own function: an object or a closure could keep a state across groups.

    Raises:
        ValueError, TypeError: an unknown optimizer or option, or a function that has no name.
    """

    optimizer: str = "sgd"
    learning_rate: float | None = None
    options: tuple[tuple[str, Any], ...] = ()
    passes: int = 1
    step: int | None = None
    function: str | None = None

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        settle("function", None if self.function is None else function_name(self.function))
        if self.function is not None:
            given = (self.optimizer, self.learning_rate, self.options, self.passes, self.step)
            if given != ("sgd", None, (), 1, None):
                raise ValueError(
                    "function= is the whole algorithm of a group: drop optimizer, learning_rate, "
                    "options, passes and step, or the function"
                )
            return
        _known_optimizer(self.optimizer)
        known = INNER[self.optimizer]
        rate = known.rate if self.learning_rate is None else self.learning_rate
        settle("learning_rate", real("learning_rate of local", rate, above=0))
        pairs = self.options.items() if isinstance(self.options, Mapping) else self.options
        options = tuple(
            (str(name), tuple(value) if isinstance(value, list) else value) for name, value in pairs
        )
        settle("options", options)
        unknown = sorted({name for name, _ in options} - set(known.options))
        if unknown:
            raise ValueError(
                f"the inner optimizer {self.optimizer!r} has no option "
                f"{', '.join(map(repr, unknown))}; it takes {', '.join(known.options)}"
            )
        for name, value in options:
            _check_option(name, value)
        settle("passes", whole("passes of local", self.passes, most=MOST_PASSES))
        if self.step is not None:
            settle("step", whole("step of local", self.step))

    @property
    def is_gradient(self) -> bool:
        """True if the update is the mean gradient itself: one plain step of size 1."""
        plain = not {name for name, value in self.options if name != "nesterov" and value}
        return (
            self.function is None
            and (self.optimizer, self.passes, self.step) == ("sgd", 1, None)
            and self.learning_rate == 1.0
            and plain
        )

    def describe(self) -> str:
        """In a few words."""
        if self.function is not None:
            return self.function
        step = "the whole group" if self.step is None else f"{self.step} records"
        passes = "one pass" if self.passes == 1 else f"{self.passes} passes"
        return f"{self.optimizer} at {self.learning_rate:g}, {passes}, steps of {step}"


@dataclass(frozen=True)
class LocalUpdates:
    """A batch is dealt into ``count`` groups, of which each one's weight change is a contribution.

    Records are dealt as for :class:`Groups`. One more record changes one whole update, so the
    sensitivity is that of groups.

    Args:
        count: how many groups. local: what runs on each.
    """

    count: int
    local: Local = field(default_factory=Local)
    kind: ClassVar[str] = "local"
    clipping: ClassVar[Clipping] = "group"
    alterable: ClassVar[bool] = False
    released: ClassVar[str] = "sums of clipped contributions"

    @property
    def groups(self) -> int:
        """As many as ``count``."""
        return self.count

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", whole("groups", self.count))
        if isinstance(self.local, Mapping):
            object.__setattr__(self, "local", build(Local, self.local))
        if not isinstance(self.local, Local):
            raise TypeError(f"local must be a forethought.Local, not {self.local!r}")

    def expected(self, batch: float) -> float:
        """The number of groups, empty ones included: the mean is over groups."""
        return float(self.count)


def _known_optimizer(name: object) -> None:
    if not isinstance(name, str):
        if hasattr(name, "state") and hasattr(name, "step"):
            raise TypeError(
                "local runs a fresh optimizer in every group: give its name, such as "
                f"{type(name).__name__.lower()!r}, not an optimizer, whose state would survive the "
                "round"
            )
        raise TypeError(f"optimizer of local must be a name, not {name!r}")
    if name == "lbfgs":
        raise ValueError(
            "the inner optimizer 'lbfgs' needs a closure, which evaluates the loss again at other "
            "weights: write it as function=, or use 'adam'"
        )
    if name not in INNER:
        raise ValueError(
            f"unknown inner optimizer {name!r}: it is one of {', '.join(INNER)}, or function= for "
            "an algorithm of your own"
        )


def _check_option(name: str, value: Any) -> None:
    if name in ("nesterov", "amsgrad", "centered"):
        if not isinstance(value, bool):
            raise TypeError(f"option {name} of local must be true or false, not {value!r}")
    elif name == "betas":
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(f"option betas of local must be two numbers, not {value!r}")
        for one in value:
            real("betas of local", one, least=0, below=1)
    elif name in ("momentum", "alpha", "dampening"):
        real(f"{name} of local", value, least=0, most=1)
    else:
        real(f"{name} of local", value, least=0)


def function_name(function: str | Callable[..., Any]) -> str:
    """``"module:function"`` of a module's own function.

    Raises:
        ValueError, TypeError: an object, a closure, or a function inside another one.
    """
    if isinstance(function, str):
        module, _, name = function.partition(":")
        if not module or not name:
            raise ValueError(f"a function of your own is named module:function, not {function!r}")
        return function
    if not isinstance(function, FunctionType) or function.__closure__:
        raise TypeError(
            "function= of local must be a module's own function: an object or a closure could "
            f"keep a state from one group to the next ({function!r} is one)"
        )
    if "." in function.__qualname__ or function.__name__ == "<lambda>":
        raise TypeError(
            f"function= of local must be importable by name, which {function.__qualname__} is not: "
            "define it at the top of a module"
        )
    return f"{function.__module__}:{function.__qualname__}"


def imported(name: str) -> Callable[..., Any]:
    """The function that a name stands for.

    Raises:
        ValueError: no such module or function, or something that could keep a state.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"function {name!r} of local cannot be loaded: {error}") from error
    function_name(found)
    return found  # type: ignore[no-any-return]


# The units that are clipped in a round: kinds of contribution, as values that a plan holds.


# The name of noised sums in transcripts.
GRADIENTS = "sums of clipped contributions"


@runtime_checkable
class Contribution(Protocol):
    """The unit that is clipped: one value says what one contribution to a round's sum is.

    A kind is a frozen dataclass of JSON-ready fields, listed in
    :data:`forethought.values.plan.CONTRIBUTIONS`; how it is
    computed is registered in :mod:`forethought.rounds.contributions`.

    Attributes:
        kind: its name in files.
        clipping: what its sensitivity follows from: see
            :meth:`~forethought.values.mechanism.Rounds.sensitivity`.
        alterable: whether it may be the mean over altered copies of a record.
    """

    kind: ClassVar[str]
    clipping: ClassVar[Clipping]
    alterable: ClassVar[bool]

    @property
    def groups(self) -> int | None:
        """The number of groups that a batch is dealt into; None: each record is for itself."""
        ...

    @property
    def released(self) -> str:
        """The name of its noised sums in transcripts."""
        ...

    def expected(self, batch: float) -> float:
        """The expected number of contributions to a round, at this expected batch size."""
        ...


@dataclass(frozen=True)
class Examples:
    """Every record's gradient is a contribution."""

    kind: ClassVar[str] = "examples"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = True
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def expected(self, batch: float) -> float:
        """One for each record of the batch."""
        return batch


@dataclass(frozen=True)
class Groups:
    """A batch is dealt into ``count`` groups, of which each one's mean gradient is a contribution.

    Each record goes to a group by itself, uniformly at random, so that one record more never moves
    another into a different group. One group is batch clipping.
    """

    count: int
    kind: ClassVar[str] = "groups"
    clipping: ClassVar[Clipping] = "group"
    alterable: ClassVar[bool] = True
    released: ClassVar[str] = GRADIENTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", whole("groups", self.count))

    @property
    def groups(self) -> int:
        """As many as ``count``."""
        return self.count

    def expected(self, batch: float) -> float:
        """The number of groups, empty ones included: an update is already a mean over records."""
        return float(self.count)


@dataclass(frozen=True)
class LinearExamples:
    """Every record's gradient is a contribution, and the model is a linear map of the record.

    The same contributions as those of :class:`Examples`, from one product with the matrix of all
    records (:mod:`forethought.rounds.contributions`).
    """

    kind: ClassVar[str] = "linear-examples"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = False
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def expected(self, batch: float) -> float:
        """One for each record of the batch."""
        return batch


@dataclass(frozen=True)
class Persons:
    """Everything that one person has in the data is a contribution: the mean over their rows.

    The examples of such a plan are persons, so one person moves a sum by one clipping norm,
    however many rows are theirs.

    Args:
        records: how many rows of one person are kept at most.
    """

    records: int
    kind: ClassVar[str] = "persons"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = True
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", whole("records_per_person", self.records))

    def expected(self, batch: float) -> float:
        """One for each person of the batch."""
        return batch
