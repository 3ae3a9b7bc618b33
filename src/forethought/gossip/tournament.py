"""All workers paired anew in every round: a round-robin tournament by the circle method.

With n players there are n − 1 rounds (n where n is odd, and one rests in each) in which every two
meet exactly once. A player's opponent is a formula, so that nobody needs a table of n² pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rounds(players: int) -> int:
    """Rounds of the tournament, at least 1."""
    return max(1, players - 1 + players % 2)


def opponent(player: int, players: int, round: int) -> int:
    """Whom ``player`` meets; itself where it rests."""
    last = players - 1 + players % 2
    if player == last:
        return round
    other = (2 * round - player) % last
    if other == player:
        other = last
    return player if other >= players else other


def opponents(players: int, round: int) -> NDArray[np.int64]:
    """Everybody's opponent."""
    last = players - 1 + players % 2
    here = np.arange(players)
    found = (2 * round - here) % last
    found[found == here] = last
    found[here == last] = round
    return np.where(found >= players, here, found)
