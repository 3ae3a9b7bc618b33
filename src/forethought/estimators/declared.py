"""What the user declares instead of letting it be read from the data: budget, bounds, classes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets

from forethought.caveats import Caveat
from forethought.checks import one_of, real
from forethought.mechanism import Adjacency, Budget
from forethought.planning.defaults import default_delta
from forethought.rounds.randomness import Seeds

FROM_DATA = "from-data"
Above = Literal["clip", "refuse"]
_SEEDS = 2**31 - 1


def budget(epsilon: float, delta: float | None, adjacency: Adjacency, examples: int) -> Budget:
    """The budget of a fit.

    Without ``delta`` it is 1/(10 n) for n records: all neighbouring data sets have as many under
    zero-out and replace-one, so that reading n costs nothing. Under add-or-remove they do not, and
    a δ that moves with the data would be part of no guarantee.

    Raises:
        TypeError, ValueError: outside its range, or no δ where none can be chosen.
    """
    epsilon = real("epsilon", epsilon, above=0)
    one_of("adjacency", adjacency, get_args(Adjacency))
    if delta is not None:
        return Budget(epsilon, real("delta", delta, above=0, below=1))
    if adjacency == "add-or-remove":
        raise ValueError(
            "delta is missing: under add-or-remove the number of records is private, so no default "
            "can follow from it. Give delta, well below one over the number of records, or use "
            "adjacency='zero-out', under which that number is public"
        )
    return Budget(epsilon, default_delta(examples))


def above_of(above: str) -> Above:
    """Whether what exceeds a declared bound is clipped to it or refused."""
    one_of("above", above, get_args(Above))
    return above  # type: ignore[return-value]


def classes(declared: Any, y: NDArray[Any]) -> tuple[NDArray[Any], tuple[Caveat, ...]]:
    """The classes in sorted order, and what the Statement has to say of them.

    Args:
        declared: every label there may be, or ``"from-data"``: those found, which the Statement
            then names as not covered.
        y: labels, (n,).

    Raises:
        TypeError, ValueError: no list of at least two different labels, or labels outside it.
    """
    check_classification_targets(y)
    if isinstance(declared, str) and declared == FROM_DATA:
        found = np.unique(y)
        if len(found) < 2:
            raise ValueError(f"there is only one class in the data, {found[0]!r}: give two or more")
        return found, (Caveat("classes-from-data", ", ".join(map(str, found))),)
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        raise TypeError(
            f"classes must list every label there may be, such as [0, 1], not {declared!r}: which "
            f"labels occur is private. {FROM_DATA!r} reads them, and the statement says so"
        )
    given = np.asarray(list(declared))
    known = np.unique(given)
    if given.ndim != 1 or len(known) != len(given) or len(given) < 2:
        raise ValueError(f"classes must be two or more different labels, not {declared!r}")
    strange = np.unique(y[~np.isin(y, known)])
    if len(strange):
        raise ValueError(
            f"labels that are not among the declared classes {known.tolist()}: "
            f"{', '.join(map(repr, strange[:3].tolist()))}. Declare them, or drop those records"
        )
    return known, ()


def target_range(declared: Any) -> tuple[float, float]:
    """Middle and half width of the declared range of targets.

    Raises:
        TypeError, ValueError: no pair of finite numbers, the lower one first.
    """
    try:
        low, high = (float(end) for end in declared)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"target_range must be a pair (lowest, highest), not {declared!r}: what targets there "
            "are is private, so their range is declared"
        ) from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"target_range must rise from one finite number to another: {declared!r}")
    return (low + high) / 2, (high - low) / 2


def seeds(random_state: Any) -> tuple[Seeds, int | None]:
    """Seeds of batches and noise, and of initial weights; none where ``random_state`` is None."""
    if random_state is None:
        return Seeds(), None
    sampling, noise, weights = map(int, check_random_state(random_state).randint(_SEEDS, size=3))
    return Seeds(sampling, noise), weights
