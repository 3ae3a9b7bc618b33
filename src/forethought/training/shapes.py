"""Shape functions: the contribution of each column of a table to an additive model's output.

They follow from the released weights and from declarations, so they cost no privacy. A surface over
two columns is the part that remains after its means over each column are moved to that column's own
curve (Lengerich et al. 2020, "Purifying interaction effects"), for records spread evenly over the
ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from forethought.data.basis import PAIR_PIECES, SIZE, Basis, Curves, hats
from forethought.data.columns import Category, Column, Date, Encoder, Outside
from forethought.values.serialisation import Stored, build
from forethought.values.use import linear_layer

Doubles = NDArray[np.float64]

# Places of a curve, and of each side of a surface; every knot of eight pieces is among them.
PLACES, SIDE = 65, 9
# Means of a surface's hats over an evenly filled range.
_MEAN = np.full(PAIR_PIECES + 1, 1 / PAIR_PIECES)
_MEAN[[0, -1]] /= 2


def _beyond(count: int) -> float:
    """Deviations that noise exceeds at any of ``count`` places in 5 of 100 runs (Bonferroni)."""
    return float(-ndtri(0.025 / count))


class AddedPart:
    """A part of an additive model's outputs; ``values`` and ``noise`` are nested tuples."""

    values: tuple[Any, ...]
    noise: tuple[Any, ...]

    @property
    def reach(self) -> float:
        """The largest difference that the part makes to an output."""
        return max(float(np.ptp(rows)) for rows in self.values)

    @property
    def clear(self) -> bool:
        """True if some value differs from 0 by more than noise alone does in 95 of 100 runs."""
        rows = np.abs(np.array(self.values))
        return bool((rows > _beyond(rows.size) * np.array(self.noise or 0.0)).any())


@dataclass(frozen=True)
class Shape(AddedPart):
    """The contribution of one column to the outputs.

    Args:
        column: its name.
        kind: "number", "day" or "word".
        places: entries: numbers in the column's own unit, days as text, or words.
        values: for each output, the contribution at each place; the mean over the places is 0.
        noise: upper bound, at each place, of the deviation from the plan's noise; empty: not known
            for the plan's optimizer.
        missing: contribution of a missing entry to each output; empty: missing entries are refused,
            or count as the middle.
    """

    column: str
    kind: str
    places: tuple[Any, ...]
    values: tuple[tuple[float, ...], ...]
    noise: tuple[float, ...] = ()
    missing: tuple[float, ...] = ()


@dataclass(frozen=True)
class Surface(AddedPart):
    """The contribution of two columns together, beyond that of each alone.

    Args:
        columns: their names.
        places: entries of the first, and of the second column.
        values: outputs × places of the first × places of the second.
        noise: as of :class:`Shape`, places of the first × places of the second.
    """

    columns: tuple[str, str]
    places: tuple[tuple[Any, ...], tuple[Any, ...]]
    values: tuple[tuple[tuple[float, ...], ...], ...]
    noise: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Shapes(Stored):
    """The shape functions of a model.

    Args:
        outputs: names of the outputs: class 1 of two, each of more classes or labels, or a
            regression's target.
        unit: of the values, in words.
        intercept: one for each output; the output if every column contributes its mean.
        columns: a curve for each column.
        pairs: surfaces; those that noise alone explains come last, otherwise the largest first.
    """

    SCHEMA: ClassVar[str] = "forethought/shapes/1"
    CALLED: ClassVar[str] = "shape functions"

    outputs: tuple[str, ...]
    unit: str
    intercept: tuple[float, ...]
    columns: tuple[Shape, ...]
    pairs: tuple[Surface, ...] = ()

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Self:
        def frozen(value: Any) -> Any:
            return tuple(map(frozen, value)) if isinstance(value, list) else value

        for name, kind in (("columns", Shape), ("pairs", Surface)):
            values[name] = tuple(
                build(kind, {key: frozen(one) for key, one in row.items()}) for row in values[name]
            )
        return cls(**{name: frozen(value) for name, value in values.items()})


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """A model that is linear in a table's features and additive over its columns.

    Args:
        encoder: encodes the table as features.
        weight: (classes, features), or (1, features) of a regression.
        bias: (classes,) or (1,).
        multilabel: True if classes are labels.
    """

    encoder: Encoder
    weight: Doubles
    bias: Doubles
    multilabel: bool = False

    @cached_property
    def _outputs(self) -> tuple[Doubles, Doubles, float]:
        """Weights, intercepts and relative noise (a weight's is 1) of the shown outputs."""
        weight, bias = self.weight, self.bias
        if len(weight) == 1:
            low, high = self.encoder.target_range or (-1.0, 1.0)
            half = high / 2 - low / 2
            return half * weight, half * bias + (low / 2 + high / 2), half
        if self.multilabel:
            return weight, bias, 1.0
        if len(weight) == 2:
            return weight[1:] - weight[:1], bias[1:] - bias[:1], math.sqrt(2)
        spread = math.sqrt(1 - 1 / len(weight))
        return weight - weight.mean(0), bias - bias.mean(), spread

    @property
    def _basis(self) -> Curves:
        found = self.encoder.basis or Curves(())
        assert isinstance(found, Curves)  # addition_of refuses others
        return found

    @cached_property
    def _parts(self) -> tuple[tuple[str, Column, slice, int | None], ...]:
        """Columns that have features: name, kind, slice of features, index in basis.numbers."""
        found, at, number = [], 0, 0
        basis = self._basis
        for name, kind in self.encoder.columns:
            width = len(kind.titles(name))
            own = number if kind.ranged and basis.numbers else None
            number += kind.ranged
            if width:
                found.append((name, kind, slice(at, at + width), own))
            at += width
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that have features."""
        return tuple(name for name, *_ in self._parts)

    @property
    def _width(self) -> int:
        return sum(part.stop - part.start for _, _, part, _ in self._parts)

    def _of_column(self, at: int, own: NDArray[Any]) -> tuple[NDArray[np.int64], Doubles]:
        """The features that a column's curve consists of, and their values for encoded entries."""
        _, _, part, number = self._parts[at]
        places, values = [np.arange(part.start, part.stop)], [own.astype(np.float64)]
        basis, step = self._basis, self._basis.pieces + 1
        if number is not None:
            places.append(self._width + step * number + np.arange(step))
            values.append(SIZE * hats(values[0][:, 0], -1.0, 1.0, basis.pieces))
        for pair, couple in enumerate(basis.couples):
            if number in couple:
                coarse = hats(values[0][:, 0], -1.0, 1.0, PAIR_PIECES)
                sides, side = (coarse[:, :, None], _MEAN), len(_MEAN) ** 2
                if number != couple[0]:
                    sides = (_MEAN[:, None], coarse[:, None, :])
                places.append(self._block(pair))
                values.append(basis.pair_size * (sides[0] * sides[1]).reshape(len(own), side))
        return np.concatenate(places), np.concatenate(values, axis=1)

    def _block(self, pair: int) -> NDArray[np.int64]:
        basis, step = self._basis, (PAIR_PIECES + 1) ** 2
        first = self._width + (basis.pieces + 1) * len(basis.numbers) + step * pair
        return first + np.arange(step)

    @cached_property
    def _references(self) -> tuple[Doubles, ...]:
        """The mean of each column's features over its declared values."""
        found = []
        for at, (name, kind, part, _) in enumerate(self._parts):
            entries = kind.spread(PLACES)
            if not len(entries):  # a user's own kind, or one without a range: relative to 0
                places, _ = self._of_column(at, np.zeros((1, part.stop - part.start)))
                found.append(np.zeros(len(places)))
                continue
            own = kind.encode("", name, entries, 0, Outside())
            _, values = self._of_column(at, own)
            shares = np.ones(len(values))
            if not isinstance(kind, Category):
                shares[[0, -1]] = 0.5  # the trapezoidal rule for a curve's mean
            found.append(shares @ values / shares.sum())
        return tuple(found)

    def _apart(self, at: int, own: NDArray[Any]) -> tuple[Doubles, Doubles]:
        """Contributions of encoded entries, (rows, outputs), and their features less the means."""
        places, values = self._of_column(at, own)
        values = values - self._references[at]
        return values @ self._outputs[0][:, places].T, values

    @cached_property
    def intercept(self) -> Doubles:
        """The outputs if every column contributes its mean."""
        weight, bias, _ = self._outputs
        found = bias.copy()
        for at, reference in enumerate(self._references):
            _, _, part, _ = self._parts[at]
            places, _ = self._of_column(at, np.zeros((1, part.stop - part.start)))
            found += weight[:, places] @ reference
        basis = self._basis
        for pair in range(len(basis.couples)):
            found -= basis.pair_size * (weight[:, self._block(pair)] @ np.kron(_MEAN, _MEAN))
        return found

    def columns(self, features: NDArray[np.float32]) -> Doubles:
        """Contributions of columns to outputs, for encoded records: (rows, columns, outputs)."""
        found = np.empty((len(features), len(self._parts), len(self._outputs[0])))
        for at, (_, _, part, _) in enumerate(self._parts):
            found[:, at], _ = self._apart(at, features[:, part])
        return found

    def pairs(self, features: NDArray[np.float32]) -> Doubles:
        """Contributions of all surfaces to outputs, for encoded records: (rows, outputs)."""
        weight, _, _ = self._outputs
        basis = self._basis
        found = np.zeros((len(features), len(weight)))
        if not basis.couples:
            return found
        numbers = features[:, list(basis.numbers)].astype(np.float64)
        apart = hats(numbers, -1.0, 1.0, PAIR_PIECES) - _MEAN
        for pair, (one, two) in enumerate(basis.couples):
            both = apart[:, one, :, None] * apart[:, two, None, :]
            own = basis.pair_size * weight[:, self._block(pair)].T
            found += both.reshape(len(features), len(own)) @ own
        return found

    def shapes(self, outputs: Sequence[str], unit: str, noise: float | None) -> Shapes:
        """All shape functions.

        Args:
            outputs, unit: as in :class:`Shapes`.
            noise: upper bound of the deviation of each weight from the plan's noise; None: not
                known.
        """
        weight, _, factor = self._outputs
        noise = None if noise is None else factor * noise
        curves = []
        for at, (name, kind, _, _) in enumerate(self._parts):
            entries = kind.spread(PLACES)
            if not len(entries):
                continue  # no declared values to show
            curve, apart = self._apart(at, kind.encode("", name, entries, 0, Outside()))
            missing: tuple[float, ...] = ()
            if kind.missing == "category":
                lost = kind.encode("", name, entries.clear(1), 0, Outside())
                missing = _tuples(self._apart(at, lost)[0][0])
            sizes = [] if noise is None else noise * np.linalg.norm(apart, axis=1)
            called = {Category: "word", Date: "day"}.get(type(kind), "number")
            shown = tuple(map(_place, entries.to_list()))
            curves.append(Shape(name, called, shown, _tuples(curve.T), _tuples(sizes), missing))
        surfaces = self._surfaces(weight, noise)
        surfaces.sort(key=lambda one: (not one.clear, -one.reach))
        intercept = _tuples(self.intercept)
        return Shapes(tuple(outputs), unit, intercept, tuple(curves), tuple(surfaces))

    def _surfaces(self, weight: Doubles, noise: float | None) -> list[Surface]:
        basis = self._basis
        ranged = [(name, kind) for name, kind, _, number in self._parts if number is not None]
        apart = hats(np.linspace(-1, 1, SIDE), -1.0, 1.0, PAIR_PIECES) - _MEAN
        found = []
        for pair, couple in enumerate(basis.couples):
            own = basis.pair_size * weight[:, self._block(pair)]
            side = PAIR_PIECES + 1
            values = np.einsum("ai,oij,bj->oab", apart, own.reshape(-1, side, side), apart)
            far = np.linalg.norm(apart, axis=1)
            size = 0.0 if noise is None else noise * basis.pair_size
            sizes: Any = size * np.outer(far, far) if size else []
            names = tuple(ranged[number][0] for number in couple)
            places = (map(_place, ranged[n][1].spread(SIDE).to_list()) for n in couple)
            first, second = map(tuple, places)
            surface = (first, second), _tuples(values), _tuples(sizes)
            found.append(Surface(names, *surface))  # type: ignore[arg-type]
        return found


def addition_of(
    encoder: Encoder, model: Any, *, multilabel: bool = False, shift: Sequence[float] = ()
) -> AdditiveModel:
    """The additive model of a linear torch module on a table's features.

    Args:
        shift: of :class:`forethought.training.metrics.Decisions`; added to the module's outputs.

    Raises:
        ValueError: another module, or features that depend on several columns.
    """
    layer = linear_layer(model)
    if layer is None or layer.in_features != len(encoder.titles):
        raise ValueError("only a linear or an additive model of a table adds column by column")
    if isinstance(encoder.basis, Basis):
        raise ValueError(
            "its features are functions of several columns: train with [training] basis = "
            '"none" and ranges = false, or take the model "additive"; either spends its own ε'
        )
    weight = layer.weight.detach().double().cpu().numpy()
    own = 0.0 if layer.bias is None else layer.bias.detach().double().cpu().numpy()
    bias = np.zeros(len(weight)) + own + (shift or 0.0)
    return AdditiveModel(encoder, weight, bias, multilabel)


def _place(entry: Any) -> Any:
    return entry.isoformat() if isinstance(entry, date) else entry


def _tuples(values: Any) -> Any:
    """An array as nested tuples of floats, rounded to six digits, which suffices for plots."""
    listed = np.asarray(values, np.float64)
    if listed.ndim > 1:
        return tuple(map(_tuples, listed))
    return tuple(float(f"{value:.6g}") for value in listed)
