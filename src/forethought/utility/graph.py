"""The utility graph: accuracy under noise at each clipping norm, and the choice of C and σ from it.

A model w is trained without noise but with clipping at C, on data that costs no privacy, and then
perturbed by n ~ N(0, (scale · C σ)² I). F(w + n)/F(w) over (C, σ) is the graph (van Dijk et al.,
"Proactive DP", Sections 3.3 and 4.1, scale 1). It is a best case: the noise of one round only.

This module holds the values and the choice; :mod:`forethought.utility.perturbing` measures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real, reals, whole
from forethought.values.plan import Plan
from forethought.values.serialisation import Readers, Stored

Source = Literal["public", "synthetic", "released", "private"]
SOURCES: tuple[Source, ...] = get_args(Source)

LEAKS = Caveat("utility-graph-on-private-data")
_HOLDERS = 1000  # a larger number matches by chance and does not mean holders


class Admissible(NamedTuple):
    """A clipping norm and its admissible σ: (the graph's smallest, the largest admissible)."""

    clip_norm: float
    noise_multipliers: tuple[float, float]


class ChosenPair(NamedTuple):
    """A chosen pair (C, σ).

    Args:
        clip_norm, noise_multiplier: the pair.
        accuracy: mean accuracy of the perturbed model at the pair.
        reason: the reason for the choice, in sentences.
    """

    clip_norm: float
    noise_multiplier: float
    accuracy: float
    reason: str


@dataclass(frozen=True, eq=False)
class UtilityGraph(Stored):
    """Accuracy of models trained with clipping, before and after Gaussian perturbation.

    Args:
        clip_norms: (norms,), increasing. noise_multipliers: (sigmas,), increasing.
        noiseless: F(w) of each norm's model, (norms,), in [0, 1].
        accuracy: F(w + n), (norms, sigmas, draws), in [0, 1].
        source: the kind of the data, as the caller declares it.
        test_examples: number of examples on which F was measured; they are always the same.
        training: the noise-free plan at the first clip norm; the others differ in the norm only.
        noise_scale: the perturbation's standard deviation is noise_scale · C · σ.
        seed: seed of initial weights, batches and draws.

    Raises:
        ValueError, TypeError: values out of range, arrays of other shapes, or no right answer of
            any model without noise.
    """

    SCHEMA: ClassVar[str] = "forethought/utility-graph/1"
    CALLED: ClassVar[str] = "utility graph"
    PARTS: ClassVar[Readers] = {"training": Plan.from_dict}

    clip_norms: tuple[float, ...]
    noise_multipliers: tuple[float, ...]
    noiseless: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    source: Source
    test_examples: int
    training: Plan
    noise_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("clip_norms", "noise_multipliers"):
            given = tuple(getattr(self, name))
            ordered = increasing(name, given)
            if ordered != given:
                raise ValueError(f"{name} must increase, as the rows of the graph do: {given}")
            object.__setattr__(self, name, ordered)
        grid = (len(self.clip_norms), len(self.noise_multipliers))
        for name in ("noiseless", "accuracy"):
            values = np.array(getattr(self, name), dtype=np.float64)
            values.setflags(write=False)
            if not ((values >= 0) & (values <= 1)).all():
                raise ValueError(f"{name} must lie in [0, 1]")
            object.__setattr__(self, name, values)
        if self.noiseless.shape != grid[:1] or self.accuracy.shape[:-1] != grid:
            raise ValueError(
                f"noiseless and accuracy of this graph must have shapes {grid[:1]} and "
                f"{(*grid, 'draws')}, not {self.noiseless.shape} and {self.accuracy.shape}"
            )
        one_of("source", self.source, SOURCES)
        whole("test_examples", self.test_examples)
        real("noise_scale", self.noise_scale, above=0)
        if not self.accuracy.shape[-1] or not self.noiseless.any():
            raise ValueError("no model got a single example right without noise: train longer")

    @property
    def draws(self) -> int:
        """The number of perturbations per pair."""
        return int(self.accuracy.shape[-1])

    @property
    def noise_meaning(self) -> str:
        """The meaning of the perturbation's standard deviation, in words."""
        plan = self.training
        one = plan.optimizer.learning_rate / plan.batch
        share = (self.noise_scale / one) ** 2
        near = round(share)
        if math.isclose(self.noise_scale, 1):
            return "C σ on the weights"
        if math.isclose(share, 1):
            return "η₀ C σ, the noise of one round of a plan"
        if math.isclose(share, plan.rounds):
            return f"√{plan.rounds:,} η₀ C σ, the noise of all rounds of plain steps"
        if 1 < near <= _HOLDERS and math.isclose(share, near):
            return f"√{near:,} η₀ C σ, the noise of one round of {near:,} holders"
        return f"{self.noise_scale:g} C σ"

    @property
    def fraction(self) -> NDArray[np.float64]:
        """F(w + n)/F(w) of the paper, (norms, sigmas, draws); 0 where F(w) is 0."""
        own = self.noiseless[:, None, None]
        kept = np.zeros_like(self.accuracy)
        return np.divide(self.accuracy, own, out=kept, where=own > 0)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of :attr:`fraction` over the draws, (norms, sigmas)."""
        return self.fraction.mean(axis=-1)

    @property
    def spread(self) -> NDArray[np.float64]:
        """Standard deviation of :attr:`fraction` over the draws, (norms, sigmas); 0 for one."""
        return _spread(self.fraction)

    @property
    def not_covered(self) -> tuple[Caveat, ...]:
        """The leak of a choice from private data, for ``plan.not_covered`` and the Statement."""
        return (LEAKS,) if self.source == "private" else ()

    def admissible(self, tolerance: float, margin: float = 0.0) -> list[Admissible]:
        """The set {(C, range of σ)} of Section 3.3 at a tolerated loss.

        A pair is admissible if the perturbed model keeps, in the mean over draws, at least
        1 − tolerance of the accuracy of the *best* noise-free model in the graph. That is stricter
        than F(w + n)/F(w) ≥ 1 − tolerance for C's own w: it also counts the loss of a norm that is
        too small for the training to converge. A range starts at the graph's smallest σ and ends
        before the first σ that fails.

        Args:
            tolerance: share of accuracy that may be lost, 0 ≤ tolerance < 1.
            margin: number of standard deviations over the draws by which the mean must exceed that
                limit.

        Returns:
            The pairs by increasing clip norm, without norms that have no admissible σ.

        Raises:
            ValueError: ``tolerance`` or ``margin`` is out of range.
        """
        tolerance = real("tolerance", tolerance, least=0, below=1)
        margin = real("margin", margin, least=0)
        kept = self.accuracy / self.noiseless.max()
        enough = kept.mean(axis=-1) - margin * _spread(kept) >= 1 - tolerance - 1e-12
        found = []
        for clip_norm, row in zip(self.clip_norms, enough, strict=True):
            count = len(row) if row.all() else int(row.argmin())
            if count:
                ends = self.noise_multipliers[0], self.noise_multipliers[count - 1]
                found.append(Admissible(clip_norm, ends))
        return found

    def choose(self, tolerance: float, margin: float = 0.0) -> ChosenPair:
        """The largest admissible σ, with the smallest C for which it is admissible.

        Only σ determines the privacy of a round; at equal σ a smaller C means less noise C σ.

        Raises:
            ValueError: no pair of the graph is admissible; the message names the nearest one.
        """
        found = self.admissible(tolerance, margin)
        if not found:
            kept = self.accuracy.mean(axis=-1) / self.noiseless.max()
            row, column = np.unravel_index(kept.argmax(), kept.shape)
            raise ValueError(
                f"no pair of this graph loses at most {tolerance:.0%}: the best, C = "
                f"{self.clip_norms[row]:.3g} with σ = {self.noise_multipliers[column]:.3g}, loses "
                f"{1 - kept[row, column]:.1%}. Tolerate more, or draw the graph with smaller noise "
                "multipliers"
            )
        best = max(found, key=lambda pair: (pair.noise_multipliers[1], -pair.clip_norm))
        clip_norm, (_, sigma) = best
        at = self.clip_norms.index(clip_norm), self.noise_multipliers.index(sigma)
        accuracy = float(self.accuracy[at].mean())
        reason = (
            f"σ = {sigma:.3g} is the largest noise multiplier at which a clip norm loses at most "
            f"{tolerance:.0%} of the best noise-free accuracy ({self.noiseless.max():.1%}), and "
            f"C = {clip_norm:.3g} is the smallest norm that bears it, with {accuracy:.1%} left"
        )
        if sigma == self.noise_multipliers[-1]:
            reason += ". It is the largest σ of the graph: more may do"
        return ChosenPair(clip_norm, sigma, accuracy, reason)

    def loss(self, clip_norm: float, noise_multiplier: float) -> float:
        """Predicted share of the best noise-free accuracy that is lost at any (C, σ).

        It is interpolated linearly in log C and in σ; σ = 0 is the noise-free model. Beyond the
        largest σ of the graph it is the loss at that σ, which is probably less than the true one.

        Raises:
            ValueError: the clip norm is outside the graph, or σ is negative.
        """
        clip_norm = real("clip_norm", clip_norm, least=self.clip_norms[0], most=self.clip_norms[-1])
        sigma = real("noise_multiplier", noise_multiplier, least=0)
        table = np.column_stack([self.noiseless, self.accuracy.mean(axis=-1)])
        sigmas = (0.0, *self.noise_multipliers)
        column = [float(np.interp(sigma, sigmas, row)) for row in table]
        kept = np.interp(np.log(clip_norm), np.log(self.clip_norms), column)
        return float(1 - kept / self.noiseless.max())

    def plan_arguments(self, tolerance: float, margin: float = 0.0) -> dict[str, Any]:
        """Arguments of :func:`forethought.plan` from the graph.

        They are the chosen clip norm and noise multiplier, the optimizer, step size and schedule of
        the trained models, and the way of the choice, for the Statement. Give the rest::

            ft.plan(examples=60000, budget=ft.Budget(1, 1e-5), batch=256,
                    **graph.plan_arguments(tolerance=0.1))
        """
        choice = self.choose(tolerance, margin)
        training = self.training
        return {
            "clip_norm": choice.clip_norm,
            "clip_rule": training.clip.rule,
            "noise_multiplier": choice.noise_multiplier,
            "optimizer": training.optimizer.name,
            "learning_rate": training.optimizer.learning_rate,
            "options": dict(training.optimizer.options),
            "schedule": training.schedule,
            **self.told(f"tolerated loss of accuracy {tolerance:.0%}"),
        }

    def told(self, how: str) -> dict[str, Any]:
        """The words of a Statement on a plan that was chosen by the graph, and ``how``."""
        whose = {
            "released": "on data released for it",
            "private": "on the private data, without accounting for it",
        }.get(self.source, f"on {self.source} data")
        chosen = Caveat("utility-graph", f"{whose} ({how})")
        return {"hyperparameters": chosen, "not_covered": self.not_covered}


def increasing(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Positive numbers in increasing order, each once.

    Raises:
        ValueError: no numbers, a number that is not positive, or one given twice.
        TypeError: a value is no number, or there is one number in place of several.
    """
    numbers = tuple(sorted(reals(name, values, above=0)))
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"{name} must be one or more different positive numbers, not {values!r}")
    return numbers


def _spread(values: NDArray[np.float64]) -> NDArray[np.float64]:
    own = min(1, values.shape[-1] - 1)  # a single draw has no spread
    return values.std(axis=-1, ddof=own)
