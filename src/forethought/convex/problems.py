"""Losses of linear models with constants that follow from public bounds: no look at the data.

F(θ) = 1/N Σ_n φ(x_nᵀθ, y_n) + λ/2 ‖θ‖² with ‖x_n‖ ≤ Z. From Z, λ and what is declared of the
targets follow a bound L on each record's gradient, the smoothness M, the strong convexity μ and the
loss at θ = 0, which bounds F(θ_0) − F* for a loss that is nowhere negative. The term λθ reads no
data: it is part of M and μ, not of L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from forethought.values.checks import one_of, real, whole
from forethought.values.serialisation import build, plain


class Problem(Protocol):
    """The facts of a loss that a plan needs; all of them public.

    Attributes:
        kind: its name in files.
        feature_bound: Z, the bound on the norm of a row. l2: λ. intercept: the value of a constant
            column that is appended, 0 for none. radius: R, of the ball that weights are kept in.
        classes: how many labels there are; 0 where targets are numbers. outputs: of the model.
        curvature: the bound on the Hessian of φ∘linear, in norm (without λ). trace: in trace.
    """

    kind: ClassVar[str]

    @property
    def feature_bound(self) -> float: ...
    @property
    def l2(self) -> float: ...
    @property
    def intercept(self) -> float: ...
    @property
    def radius(self) -> float | None: ...
    @property
    def classes(self) -> int: ...
    @property
    def target_bound(self) -> float: ...
    @property
    def outputs(self) -> int: ...
    @property
    def row_bound(self) -> float: ...
    @property
    def lipschitz(self) -> float: ...
    @property
    def curvature(self) -> float: ...
    @property
    def trace(self) -> float: ...
    @property
    def smoothness(self) -> float: ...
    @property
    def convexity(self) -> float: ...
    @property
    def loss_at_zero(self) -> float: ...
    @property
    def is_convex(self) -> bool: ...
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The common part of all losses here; see :class:`Problem`.

    Args:
        feature_bound: Z > 0. Longer rows are scaled to it, or refused.
        l2: λ ≥ 0, on all weights, that of the constant column included.
        intercept: value of a constant column that is appended to every row; 0: none.
        radius: R > 0, of the ball around zero that weights are projected to; None: they are not.

    Raises:
        TypeError, ValueError: a number outside its range.
    """

    feature_bound: float
    l2: float = 0.0
    intercept: float = 0.0
    radius: float | None = None

    if TYPE_CHECKING:
        # Not at run time, where a dataclass would take them for defaults of its fields.
        kind: ClassVar[str]

        @property
        def curvature(self) -> float: ...

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "feature_bound", real("feature_bound", self.feature_bound, above=0)
        )
        object.__setattr__(self, "l2", real("l2", self.l2, least=0))
        object.__setattr__(self, "intercept", real("intercept", self.intercept))
        if self.radius is not None:
            object.__setattr__(self, "radius", real("radius", self.radius, above=0))

    @property
    def row_bound(self) -> float:
        """The bound on the norm of a row with its constant column."""
        return math.hypot(self.feature_bound, self.intercept)

    @property
    def smoothness(self) -> float:
        """M = curvature + λ."""
        return self.curvature + self.l2

    @property
    def convexity(self) -> float:
        """μ = λ."""
        return self.l2

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :func:`problem_from_dict` reads it back."""
        return {"kind": self.kind, **{f.name: plain(getattr(self, f.name)) for f in fields(self)}}


@dataclass(frozen=True, kw_only=True)
class LogisticRegression(Linear):
    """φ(z, y) = ln(1 + e^(−yz)), labels 0 and 1 (y = −1, 1): |φ′| ≤ 1, φ″ ≤ 1/4.

    L = Z, M = Z²/4 + λ (the paper's Section 4), φ(0) = ln 2.
    """

    kind: ClassVar[str] = "logistic"
    classes: ClassVar[int] = 2
    outputs: ClassVar[int] = 1
    target_bound: ClassVar[float] = math.inf
    is_convex: ClassVar[bool] = True

    @property
    def lipschitz(self) -> float:
        """L = Z."""
        return self.row_bound

    @property
    def curvature(self) -> float:
        """Z²/4."""
        return self.row_bound**2 / 4

    @property
    def trace(self) -> float:
        """Z²/4: one direction a record."""
        return self.curvature

    @property
    def loss_at_zero(self) -> float:
        """ln 2."""
        return math.log(2)


@dataclass(frozen=True, kw_only=True)
class SoftmaxRegression(Linear):
    """Cross entropy of ``classes`` outputs: ‖p − e_y‖ ≤ √2, Hessian at most (I − 11ᵀ/k)/2.

    L = √2 Z, M = Z²/2 + λ (Böhning 1992), φ(0) = ln k. Σ p(1 − p) ≤ 1 − 1/k bounds the trace.
    """

    classes: int
    kind: ClassVar[str] = "softmax"
    target_bound: ClassVar[float] = math.inf
    is_convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "classes", whole("classes", self.classes, least=2))

    @property
    def outputs(self) -> int:
        """One a class."""
        return self.classes

    @property
    def lipschitz(self) -> float:
        """L = √2 Z."""
        return math.sqrt(2) * self.row_bound

    @property
    def curvature(self) -> float:
        """Z²/2."""
        return self.row_bound**2 / 2

    @property
    def trace(self) -> float:
        """(1 − 1/k)Z²."""
        return (1 - 1 / self.classes) * self.row_bound**2

    @property
    def loss_at_zero(self) -> float:
        """ln k."""
        return math.log(self.classes)


@dataclass(frozen=True, kw_only=True)
class SmoothedHinge(Linear):
    """The linear support vector machine's loss, smoothed over ``smoothing`` (γ); labels 0 and 1.

    0 for m = yz ≥ 1, (1 − m)²/(2γ) down to m = 1 − γ, then 1 − m − γ/2 (Shalev-Shwartz and Zhang
    2013, Section 6): |φ′| ≤ 1, φ″ ≤ 1/γ.
    """

    smoothing: float = 1.0
    kind: ClassVar[str] = "smoothed-hinge"
    classes: ClassVar[int] = 2
    outputs: ClassVar[int] = 1
    target_bound: ClassVar[float] = math.inf
    is_convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "smoothing", real("smoothing", self.smoothing, above=0))

    @property
    def lipschitz(self) -> float:
        """L = Z."""
        return self.row_bound

    @property
    def curvature(self) -> float:
        """Z²/γ."""
        return self.row_bound**2 / self.smoothing

    @property
    def trace(self) -> float:
        """Z²/γ."""
        return self.curvature

    @property
    def loss_at_zero(self) -> float:
        """1 − γ/2, or 1/(2γ) where γ > 1."""
        return 1 - self.smoothing / 2 if self.smoothing <= 1 else 1 / (2 * self.smoothing)


@dataclass(frozen=True, kw_only=True)
class LinearRegression(Linear):
    """φ(z, y) = (z − y)²/2 with |y| ≤ ``target_bound`` (B); ridge regression where λ > 0.

    A residual is at most ZR + B, so L = Z(ZR + B) needs the radius; where λ > 0 the minimiser lies
    within B/√λ, since λ/2 ‖θ*‖² ≤ F(0) ≤ B²/2, which is then taken. M = Z² + λ.

    Raises:
        ValueError: neither a radius nor λ > 0.
    """

    target_bound: float
    classes: ClassVar[int] = 0
    outputs: ClassVar[int] = 1
    is_convex: ClassVar[bool] = True
    kind: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "target_bound", real("target_bound", self.target_bound, above=0))
        if self.radius is None:
            if self.l2 == 0:
                raise ValueError(
                    "squared error has no bounded gradient without a bound on the weights: give "
                    "radius= (the ball that they are kept in), or l2= above 0"
                )
            object.__setattr__(self, "radius", self.target_bound / math.sqrt(self.l2))

    @property
    def lipschitz(self) -> float:
        """L = Z(ZR + B)."""
        return self.row_bound * (self.row_bound * float(self.radius or 0.0) + self.target_bound)

    @property
    def curvature(self) -> float:
        """Z²."""
        return self.row_bound**2

    @property
    def trace(self) -> float:
        """Z²."""
        return self.curvature

    @property
    def loss_at_zero(self) -> float:
        """B²/2."""
        return self.target_bound**2 / 2


@dataclass(frozen=True, kw_only=True)
class HuberRegression(Linear):
    """(z − y)²/2 up to a residual of ``threshold`` (τ), then τ|z − y| − τ²/2 (Huber 1964).

    |φ′| ≤ τ, φ″ ≤ 1: L = τZ, M = Z² + λ, whatever the weights.
    """

    target_bound: float
    threshold: float = 1.0
    classes: ClassVar[int] = 0
    outputs: ClassVar[int] = 1
    is_convex: ClassVar[bool] = True
    kind: ClassVar[str] = "huber"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "target_bound", real("target_bound", self.target_bound, above=0))
        object.__setattr__(self, "threshold", real("threshold", self.threshold, above=0))

    @property
    def lipschitz(self) -> float:
        """L = τZ."""
        return self.threshold * self.row_bound

    @property
    def curvature(self) -> float:
        """Z²."""
        return self.row_bound**2

    @property
    def trace(self) -> float:
        """Z²."""
        return self.curvature

    @property
    def loss_at_zero(self) -> float:
        """Huber's loss of B."""
        least = min(self.target_bound, self.threshold)
        return least * (self.target_bound - least / 2)


@dataclass(frozen=True, kw_only=True)
class DeclaredLoss(Linear):
    """A loss of one's own φ, of one output, with constants that its owner declares.

    A wrong constant costs accuracy, never privacy: gradients are clipped.

    Args:
        name: of a loss and its slope, which :func:`forethought.convex.descend` is given.
        lipschitz: bound on each record's gradient over the ball. curvature: on the Hessian of the
            data's part, in norm, λ not included.
        strong_convexity: of the data's part. gap: F(θ_0) − F* at most.
        convex: whether the loss is.
        targets: bound on |y|; None: labels 0 and 1.

    Raises:
        ValueError: more strong convexity than smoothness, or any of a loss that is not convex.
    """

    name: str
    lipschitz: float
    curvature: float
    gap: float
    strong_convexity: float = 0.0
    convex: bool = True
    targets: float | None = None
    kind: ClassVar[str] = "declared"
    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"a loss needs a name, not {self.name!r}")
        for name in ("lipschitz", "curvature", "gap"):
            object.__setattr__(self, name, real(name, getattr(self, name), above=0))
        strong = real("strong_convexity", self.strong_convexity, least=0)
        object.__setattr__(self, "strong_convexity", strong)
        if self.targets is not None:
            object.__setattr__(self, "targets", real("targets", self.targets, above=0))
        if not isinstance(self.convex, bool):
            raise TypeError(f"convex must be true or false, not {self.convex!r}")
        if strong > self.curvature:
            raise ValueError(
                f"the constants contradict each other: a strong convexity of {strong:g} cannot "
                f"exceed the smoothness, whose part without l2 is {self.curvature:g}"
            )
        if not self.convex and (strong or self.l2):
            raise ValueError(
                "a loss that is not convex has no strong convexity: drop strong_convexity= and l2="
            )

    @property
    def is_convex(self) -> bool:
        """As declared."""
        return self.convex

    @property
    def classes(self) -> int:
        """2 for labels, 0 for numbers."""
        return 2 if self.targets is None else 0

    @property
    def target_bound(self) -> float:
        """As declared."""
        return math.inf if self.targets is None else self.targets

    @property
    def trace(self) -> float:
        """At most the norm, since a record moves one output."""
        return self.curvature

    @property
    def convexity(self) -> float:
        """As declared, and λ."""
        return self.strong_convexity + self.l2

    @property
    def loss_at_zero(self) -> float:
        """F(θ_0) − F* as declared."""
        return self.gap


PROBLEMS: dict[str, type[Any]] = {
    kind.kind: kind
    for kind in (
        LogisticRegression,
        SoftmaxRegression,
        SmoothedHinge,
        LinearRegression,
        HuberRegression,
        DeclaredLoss,
    )
}


def problem_from_dict(values: Mapping[str, Any]) -> Problem:
    """The inverse of a problem's ``to_dict``; refuses unknown keys and kinds."""
    known = dict(values)
    kind = known.pop("kind", None)
    one_of("problem", kind, tuple(PROBLEMS))
    found: Problem = build(PROBLEMS[kind], known)
    return found
