"""Losses of linear models with constants that follow from public bounds, without the data.

F(θ) = 1/N Σ_n φ(x_nᵀθ, y_n) + λ/2 ‖θ‖² with ‖x_n‖ ≤ Z. Four constants follow from Z, λ and the
declared targets: a bound L on each record's gradient, the smoothness M, the strong convexity μ and
the loss at θ = 0, which bounds F(θ_0) − F* for a nonnegative loss. The term λθ does not depend on
the data: it is part of M and μ, not of L.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from forethought.values.checks import real, settle, whole
from forethought.values.serialisation import of_kind, tagged

# Metadata of a field that holds a number: its bounds, as keywords of `real`.
_ABOVE, _LEAST = {"bounds": {"above": 0}}, {"bounds": {"least": 0}}
# Of rows and of their constant column: fourth powers of other lengths leave the doubles.
_LENGTH: dict[str, Any] = {"bounds": {"least": 1e-60, "most": 1e60}}
_COLUMN: dict[str, Any] = {"bounds": {"least": -1e60, "most": 1e60}}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Base of losses: the public constants that a plan needs.

    Args:
        feature_bound: Z, the bound on the norm of a row, from 1e-60 to 1e60. Longer rows are
            scaled to it, or refused.
        l2: λ ≥ 0, on all weights, also that of the constant column.
        intercept: value of a constant column that is appended to every row; 0: none.
        radius: R > 0, radius of the ball around zero to which weights are projected; None: no
            projection.

    Attributes:
        kind: name of the loss in files.
        classes: number of labels; 0 if targets are numbers.
        target_bound: the bound on |y|.
        lipschitz: L, the bound on a record's gradient.
        loss_at_zero: F(0), which bounds F(0) − F*.
        curvature: the bound on the norm of the Hessian of φ∘linear (without λ).

    Raises:
        TypeError, ValueError: a number is out of range.
    """

    feature_bound: float = field(metadata=_LENGTH)
    l2: float = field(default=0.0, metadata=_LEAST)
    intercept: float = field(default=0.0, metadata=_COLUMN)
    radius: float | None = field(default=None, metadata=_ABOVE)

    if TYPE_CHECKING:
        # For type checkers only: at run time a dataclass would use them as defaults of its fields.
        kind: ClassVar[str]

        @property
        def classes(self) -> int: ...
        @property
        def target_bound(self) -> float: ...
        @property
        def lipschitz(self) -> float: ...
        @property
        def curvature(self) -> float: ...
        @property
        def loss_at_zero(self) -> float: ...

    def __post_init__(self) -> None:
        for one in fields(self):
            given = getattr(self, one.name)
            if "bounds" in one.metadata and (given is not None or one.default is not None):
                settle(self, **{one.name: real(one.name, given, **one.metadata["bounds"])})

    @property
    def row_bound(self) -> float:
        """The bound on the norm of a row with its constant column."""
        return math.hypot(self.feature_bound, self.intercept)

    @property
    def outputs(self) -> int:
        """The number of the model's outputs."""
        return 1

    @property
    def is_convex(self) -> bool:
        """True for all losses except a DeclaredLoss that is declared not convex."""
        return True

    @property
    def trace(self) -> float:
        """The bound on the Hessian's trace; equal to :attr:`curvature` for a single output."""
        return self.curvature

    @property
    def smoothness(self) -> float:
        """M = curvature + λ."""
        return self.curvature + self.l2

    @property
    def convexity(self) -> float:
        """μ = λ."""
        return self.l2

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON; :func:`problem_from_dict` is the inverse."""
        return tagged(self)


@dataclass(frozen=True, kw_only=True)
class _OfBoundedSlope(Problem):
    """Base of losses with |φ′| ≤ ``slope`` and φ″ ≤ ``bend``: L = slope · Z, M = bend · Z² + λ."""

    slope: ClassVar[float] = 1.0
    bend: ClassVar[float] = 1.0

    @property
    def lipschitz(self) -> float:
        """L: the bound on the slope times Z."""
        return self.slope * self.row_bound

    @property
    def curvature(self) -> float:
        """The bound on φ″ times Z²."""
        return self.bend * self.row_bound**2


@dataclass(frozen=True, kw_only=True)
class LogisticRegression(_OfBoundedSlope):
    """φ(z, y) = ln(1 + e^(−yz)), labels 0 and 1 (y = −1, 1): |φ′| ≤ 1, φ″ ≤ 1/4.

    L = Z, M = Z²/4 + λ (the paper's Section 4), φ(0) = ln 2.
    """

    kind: ClassVar[str] = "logistic"
    classes: ClassVar[int] = 2
    target_bound: ClassVar[float] = math.inf
    bend: ClassVar[float] = 1 / 4
    loss_at_zero: ClassVar[float] = math.log(2)


@dataclass(frozen=True, kw_only=True)
class SoftmaxRegression(_OfBoundedSlope):
    """Cross entropy of ``classes`` outputs: ‖p − e_y‖ ≤ √2, Hessian at most (I − 11ᵀ/k)/2.

    L = √2 Z, M = Z²/2 + λ (Böhning 1992), φ(0) = ln k. Σ p(1 − p) ≤ 1 − 1/k bounds the trace.
    """

    classes: int
    kind: ClassVar[str] = "softmax"
    target_bound: ClassVar[float] = math.inf
    slope: ClassVar[float] = math.sqrt(2)
    bend: ClassVar[float] = 1 / 2

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, classes=whole("classes", self.classes, least=2))

    @property
    def outputs(self) -> int:
        """One output for each class."""
        return self.classes

    @property
    def trace(self) -> float:
        """(1 − 1/k)Z²."""
        return (1 - 1 / self.classes) * self.row_bound**2

    @property
    def loss_at_zero(self) -> float:
        """ln k."""
        return math.log(self.classes)


@dataclass(frozen=True, kw_only=True)
class SmoothedHinge(_OfBoundedSlope):
    """The linear support vector machine's loss, smoothed over ``smoothing`` (γ); labels 0 and 1.

    0 for m = yz ≥ 1, (1 − m)²/(2γ) down to m = 1 − γ, then 1 − m − γ/2 (Shalev-Shwartz and Zhang
    2013, Section 6): |φ′| ≤ 1, φ″ ≤ 1/γ.
    """

    smoothing: float = field(default=1.0, metadata=_ABOVE)
    kind: ClassVar[str] = "smoothed-hinge"
    classes: ClassVar[int] = 2
    target_bound: ClassVar[float] = math.inf

    @property
    def curvature(self) -> float:
        """Z²/γ."""
        return self.row_bound**2 / self.smoothing

    @property
    def loss_at_zero(self) -> float:
        """1 − γ/2, or 1/(2γ) where γ > 1."""
        return 1 - self.smoothing / 2 if self.smoothing <= 1 else 1 / (2 * self.smoothing)


@dataclass(frozen=True, kw_only=True)
class LinearRegression(_OfBoundedSlope):
    """φ(z, y) = (z − y)²/2 with |y| ≤ ``target_bound`` (B); ridge regression where λ > 0.

    A residual is at most ZR + B, so L = Z(ZR + B) needs the radius R. If it is not given and λ > 0,
    it is B/√λ: the minimiser lies within, since λ/2 ‖θ*‖² ≤ F(0) ≤ B²/2. M = Z² + λ.

    Raises:
        ValueError: neither a radius nor λ > 0.
    """

    target_bound: float = field(metadata=_ABOVE)
    classes: ClassVar[int] = 0
    kind: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is None:
            if self.l2 == 0:
                raise ValueError(
                    "squared error needs a bound on the weights: give radius=, or l2= above 0"
                )
            settle(self, radius=self.target_bound / math.sqrt(self.l2))

    @property
    def lipschitz(self) -> float:
        """L = Z(ZR + B)."""
        return self.row_bound * (self.row_bound * float(self.radius or 0.0) + self.target_bound)

    @property
    def loss_at_zero(self) -> float:
        """B²/2."""
        return self.target_bound**2 / 2


@dataclass(frozen=True, kw_only=True)
class HuberRegression(_OfBoundedSlope):
    """(z − y)²/2 up to a residual of ``threshold`` (τ), then τ|z − y| − τ²/2 (Huber 1964).

    |φ′| ≤ τ, φ″ ≤ 1: L = τZ, M = Z² + λ, for any weights.
    """

    target_bound: float = field(metadata=_ABOVE)
    threshold: float = field(default=1.0, metadata=_ABOVE)
    classes: ClassVar[int] = 0
    kind: ClassVar[str] = "huber"

    @property
    def lipschitz(self) -> float:
        """L = τZ."""
        return self.threshold * self.row_bound

    @property
    def loss_at_zero(self) -> float:
        """Huber's loss at a residual of B."""
        least = min(self.target_bound, self.threshold)
        return least * (self.target_bound - least / 2)


@dataclass(frozen=True, kw_only=True)
class DeclaredLoss(Problem):
    """A user-defined loss φ of one output, with constants that the user declares.

    A wrong constant costs accuracy, not privacy: gradients are clipped.

    Args:
        name: name of the loss, whose slope is an argument of :func:`forethought.convex.descend`.
        lipschitz: bound on each record's gradient over the ball.
        curvature: bound on the norm of the Hessian of the data's part, without λ.
        gap: an upper bound on F(θ_0) − F*.
        strong_convexity: strong convexity of the data's part.
        convex: True if the loss is convex.
        targets: bound on |y|; None: labels 0 and 1.

    Raises:
        TypeError: no name, or ``convex`` is no bool.
        ValueError: a number is out of range; the strong convexity exceeds the curvature; or a loss
            that is not convex has strong convexity or l2.
    """

    name: str
    lipschitz: float = field(metadata=_ABOVE)
    curvature: float = field(metadata=_ABOVE)
    gap: float = field(metadata=_ABOVE)
    strong_convexity: float = field(default=0.0, metadata=_LEAST)
    convex: bool = True
    targets: float | None = field(default=None, metadata=_ABOVE)
    kind: ClassVar[str] = "declared"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"a loss needs a name, not {self.name!r}")
        if not isinstance(self.convex, bool):
            raise TypeError(f"convex must be true or false, not {self.convex!r}")
        if self.strong_convexity > self.curvature:
            raise ValueError(
                f"a strong convexity of {self.strong_convexity:g} and a curvature of "
                f"{self.curvature:g} contradict each other"
            )
        if not self.convex and (self.strong_convexity or self.l2):
            raise ValueError(
                "a loss that is not convex has no strong convexity: drop strong_convexity= and l2="
            )

    @property
    def is_convex(self) -> bool:
        """The declared value."""
        return self.convex

    @property
    def classes(self) -> int:
        """2 for labels, 0 for numbers."""
        return 2 if self.targets is None else 0

    @property
    def target_bound(self) -> float:
        """The declared value."""
        return math.inf if self.targets is None else self.targets

    @property
    def convexity(self) -> float:
        """The declared strong convexity plus λ."""
        return self.strong_convexity + self.l2

    @property
    def loss_at_zero(self) -> float:
        """F(θ_0) − F* as declared."""
        return self.gap


PROBLEMS: dict[str, type[Problem]] = {
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
    """The inverse of a problem's ``to_dict``; ValueError for unknown keys and kinds."""
    return of_kind(PROBLEMS, values, "problem")
