"""Several holders' statements as one: of persons in one holder's data, or in several holders'.

A record is in the data of the holders that have it, and the others' releases do not depend on it.
One holder: the largest ε of all (parallel composition). Several: their releases compose, since
each adds noise of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import add

from forethought.accounting.assumptions import Randomness
from forethought.accounting.statement import Statement, StatementError, account
from forethought.caveats import Caveat
from forethought.checks import whole
from forethought.mechanism import Mechanism

# So many choices of holders that share a person are composed; more are bounded by all of them.
MOST_CHOICES = 500


def disjoint(statements: Mapping[str, Statement]) -> Statement:
    """The statement of all where no person's records are held by two of them.

    Args:
        statements: name → its statement; one adjacency, group and kind of accountant.

    Raises:
        StatementError: statements of different kinds, or none.
    """
    kinds = {(one.adjacency, one.group, one.accountant["kind"]) for one in statements.values()}
    if len(kinds) != 1:
        raise StatementError(
            f"statements of one adjacency, group and view have a maximum; these are {kinds or None}"
        )
    delta = max(one.delta for one in statements.values())
    names = ", ".join(sorted(statements)[:20]) + (", …" if len(statements) > 20 else "")
    distinct = {
        (one.mechanism, str(one.accountant), one.randomness): one for one in statements.values()
    }
    found = [
        account(
            one.mechanism,
            delta,
            group=one.group,
            accountant=one.accountant,
            randomness=one.randomness,
            not_covered=(
                *(note for note in one.caveats if note.role == "not-covered"),
                Caveat("disjoint-holders", names),
            ),
        )
        for one in distinct.values()
    ]
    return max(found, key=lambda one: (one.guarantee, one.epsilon.upper))


def shared(
    mechanisms: Sequence[Mechanism],
    holders: int,
    delta: float,
    *,
    randomness: Randomness | None = None,
    not_covered: Iterable[Caveat | str] = (),
) -> Statement:
    """The statement for persons whose records up to ``holders`` of them hold.

    Args:
        mechanisms: what each holder released. holders: at least 1; more than there are: all.

    Returns:
        Of the worst choice of holders.

    Raises:
        StatementError: different adjacencies, or no mechanism.
    """
    adjacencies = {mechanism.adjacency for mechanism in mechanisms}
    if len(adjacencies) != 1:
        raise StatementError(
            f"releases compose under one adjacency; these have {sorted(adjacencies) or 'none'}"
        )
    whole("holders", holders)
    detail = f"up to {holders} of {len(mechanisms)} holders"
    notes = (Caveat("several-holders", detail), *not_covered)
    found = [
        account(reduce(add, choice), delta, not_covered=notes, randomness=randomness)
        for choice in _choices(mechanisms, min(holders, len(mechanisms)))
    ]
    return max(found, key=lambda one: (one.guarantee, one.epsilon.upper))


def _choices(mechanisms: Sequence[Mechanism], holders: int) -> list[tuple[Mechanism, ...]]:
    kinds = {mechanism: place for place, mechanism in enumerate(dict.fromkeys(mechanisms))}
    if len(kinds) == 1:
        return [tuple(mechanisms[:holders])]
    if math.comb(len(mechanisms), holders) > 100 * MOST_CHOICES:
        return [tuple(mechanisms)]
    seen: dict[tuple[int, ...], tuple[Mechanism, ...]] = {}
    for choice in combinations(mechanisms, holders):
        seen.setdefault(tuple(sorted(kinds[one] for one in choice)), choice)
        if len(seen) > MOST_CHOICES:
            # All of them together bound any choice.
            return [tuple(mechanisms)]
    return list(seen.values())
