"""The plan of a descent: one frozen value that is planned, run, accounted and stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from forethought.caveats import Caveat, caveats, choice
from forethought.checks import real, whole
from forethought.convex.problems import Problem, problem_from_dict
from forethought.mechanism import Budget, Mechanism
from forethought.preparation import Preparation
from forethought.privacy import NoiseKind, Privacy, Round
from forethought.serialisation import Stored, plain


@dataclass(frozen=True, init=False)
class DescentPlan(Stored):
    """Everything that a private descent needs, decided before any private data is touched.

    Args:
        problem: the loss with its constants.
        privacy: what is released; the schedule's noise is in its mechanism.
        features: columns of the data, the constant one not counted.
        steps: η_t, one a round.
        accelerated: whether steps carry Nesterov's momentum (t − 1)/(t + 2).
        hyperparameters, not_covered, reasons: as in :class:`forethought.Plan`.

    Raises:
        ValueError, TypeError: parts that contradict each other.
    """

    SCHEMA: ClassVar[str] = "forethought/descent-plan/1"
    CALLED: ClassVar[str] = "descent plan"

    problem: Problem
    privacy: Privacy
    features: int
    steps: tuple[float, ...]
    accelerated: bool
    hyperparameters: Caveat
    not_covered: tuple[Caveat, ...]
    reasons: tuple[tuple[str, str], ...]

    def __init__(
        self,
        problem: Problem,
        privacy: Privacy,
        features: int,
        steps: Iterable[float],
        *,
        accelerated: bool = False,
        hyperparameters: Caveat | str = Caveat("planned"),  # noqa: B008 (frozen)
        not_covered: Iterable[Caveat | str] = (),
        reasons: Iterable[tuple[str, str]] = (),
    ) -> None:
        sizes = tuple(real("step size", size, above=0) for size in steps)
        if len(sizes) != privacy.rounds:
            raise ValueError(
                f"{len(sizes)} step sizes for {privacy.rounds} rounds: every round takes one step"
            )
        if privacy.contribution.kind != "linear-examples" or privacy.clip.rule != "flat":
            raise ValueError("a descent sums linear examples that are clipped flat")
        if any(part.sampling.kind != "full-batch" for part in privacy.mechanism):
            raise ValueError("a descent takes full batches; for others there is forethought.train")
        if not isinstance(accelerated, bool):
            raise TypeError(f"accelerated must be true or false, not {accelerated!r}")
        pairs = tuple((str(what), str(why)) for what, why in reasons)
        for name, value in (
            ("problem", problem),
            ("privacy", privacy),
            ("features", whole("features", features)),
            ("steps", sizes),
            ("accelerated", accelerated),
            ("hyperparameters", choice(hyperparameters)),
            ("not_covered", caveats(not_covered)),
            ("reasons", pairs),
        ):
            object.__setattr__(self, name, value)

    @property
    def mechanism(self) -> Mechanism:
        """The releases: those of the preparation, then the rounds."""
        return self.privacy.accounted

    @property
    def preparation(self) -> Preparation | None:
        """What is released first to prepare the features with."""
        return self.privacy.preparation

    @property
    def examples(self) -> int:
        """Size N of the training set."""
        return self.privacy.examples

    @property
    def delta(self) -> float:
        """The δ at which the Statement gives ε."""
        return self.privacy.delta

    @property
    def budget(self) -> Budget | None:
        """The target that was asked for."""
        return self.privacy.budget

    @property
    def noise(self) -> NoiseKind:
        """Which noise."""
        return self.privacy.noise

    @property
    def clip_norm(self) -> float:
        """C, the bound on one record's gradient."""
        return self.privacy.clip.norm

    @property
    def rounds(self) -> int:
        """T, how many noised sums are released."""
        return self.privacy.rounds

    @property
    def columns(self) -> int:
        """Columns of the matrix that is summed over, the constant one included."""
        return self.features + bool(self.problem.intercept)

    @property
    def weights(self) -> int:
        """d, all trained numbers."""
        return self.columns * self.problem.outputs

    @property
    def sigmas(self) -> tuple[float, ...]:
        """σ_t: standard deviation of the noise on every coordinate of the mean gradient."""
        return tuple(
            part.noise_multiplier * self.clip_norm / self.examples
            for part in self.privacy.mechanism
            for _ in range(part.count)
        )

    def round(self, index: int) -> Round:
        """Round ``index``, from 0; see :meth:`forethought.privacy.Privacy.round`."""
        return self.privacy.round(index)

    def schedule(self, t: int) -> tuple[float, float]:
        """(σ_t, η_t) of iteration t = 1 … T."""
        found = self.round(whole("t", t, most=self.rounds) - 1)
        return found.noise_std / found.divisor, self.steps[t - 1]

    def explain(self) -> str:
        """Why each number is what it is, a sentence each."""
        return "\n".join(f"{what}: {why}" for what, why in self.reasons)

    def _values(self) -> dict[str, Any]:
        return {
            "problem": self.problem.to_dict(),
            "privacy": self.privacy.to_dict(),
            "features": self.features,
            "steps": list(self.steps),
            "accelerated": self.accelerated,
            "hyperparameters": plain(self.hyperparameters),
            "not_covered": plain(self.not_covered),
            "reasons": plain(self.reasons),
        }

    @classmethod
    def _restore(cls, values: Mapping[str, Any]) -> DescentPlan:
        return cls(
            problem_from_dict(values["problem"]),
            Privacy.from_dict(values["privacy"]),
            values["features"],
            values["steps"],
            accelerated=values["accelerated"],
            hyperparameters=Caveat.from_dict(values["hyperparameters"]),
            not_covered=[Caveat.from_dict(value) for value in values["not_covered"]],
            reasons=[(what, why) for what, why in values["reasons"]],
        )
