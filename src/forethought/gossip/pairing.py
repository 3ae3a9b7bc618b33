"""The edges of a graph dealt into matchings: no two edges of one colour share a worker.

A bipartite graph with at most d neighbours needs d colours (König 1916), any other at most d + 1
(Vizing 1964; the construction of Misra and Gries 1992). Classes are then made equally large, up to
one (de Werra 1971): two colours form paths and cycles, and a path with one edge too many of a
colour can be swapped.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forethought.gossip.graphs import Edge, Graph

_Table = list[dict[int, int]]  # worker → colour → the neighbour at the end of that edge


def colour(graph: Graph) -> tuple[tuple[Edge, ...], ...]:
    """The edges of ``graph`` in matchings of equal size (up to one), each sorted."""
    most = max(graph.degree(worker) for worker in range(graph.size))
    table: _Table = [{} for _ in range(graph.size)]
    far = graph.distances(0)
    if all((far[one] + far[other]) % 2 for one, other in graph.edges):  # bipartite
        colours = most
        for one, other in graph.edges:
            _join_bipartite(table, one, other, colours)
    else:
        colours = most + 1
        for one, other in graph.edges:
            _join(table, one, other, colours)
    classes: list[set[Edge]] = [set() for _ in range(colours)]
    for worker, ends in enumerate(table):
        for shade, other in ends.items():
            if worker < other:
                classes[shade].add((worker, other))
    _even_out(classes)
    return tuple(tuple(sorted(ones)) for ones in classes if ones)


def _free(table: _Table, worker: int, colours: int) -> int:
    return next(shade for shade in range(colours) if shade not in table[worker])


def _set(table: _Table, one: int, other: int, shade: int) -> None:
    table[one][shade] = other
    table[other][shade] = one


def _swap(table: _Table, start: int, first: int, second: int) -> None:
    """Swap two colours along the path that begins at ``start`` with ``first``."""
    path, worker, shade = [start], start, first
    while shade in table[worker]:
        worker = table[worker][shade]
        path.append(worker)
        shade = second if shade == first else first
    for step, (one, other) in enumerate(pairwise(path)):
        old = second if step % 2 else first
        del table[one][old], table[other][old]
    for step, (one, other) in enumerate(pairwise(path)):
        _set(table, one, other, first if step % 2 else second)


def _join_bipartite(table: _Table, one: int, other: int, colours: int) -> None:
    mine, theirs = _free(table, one, colours), _free(table, other, colours)
    if mine != theirs and mine in table[other]:
        # The path of both colours from ``other`` cannot end in ``one``: it would close an odd
        # cycle with the new edge.
        _swap(table, other, mine, theirs)
    _set(table, one, other, mine)


def _join(table: _Table, one: int, other: int, colours: int) -> None:
    """Colour one more edge (Misra and Gries 1992)."""
    fan = [other]
    unused = {end: shade for shade, end in table[one].items()}
    while True:
        after = next((end for end, shade in unused.items() if shade not in table[fan[-1]]), None)
        if after is None:
            break
        del unused[after]
        fan.append(after)
    mine, theirs = _free(table, one, colours), _free(table, fan[-1], colours)
    if theirs in table[one]:
        _swap(table, one, theirs, mine)
    # ``theirs`` is free at ``one`` now, and somewhere on the fan: up to there every edge of the fan
    # takes the colour of the next.
    last = next(place for place, end in enumerate(fan) if theirs not in table[end])
    shades = {end: shade for shade, end in table[one].items()}
    for end, following in pairwise(fan[: last + 1]):
        shade = shades[following]
        del table[one][shade], table[following][shade]
        _set(table, one, end, shade)
    _set(table, one, fan[last], theirs)


def _even_out(classes: list[set[Edge]]) -> None:
    while True:
        large, small = max(classes, key=len), min(classes, key=len)
        surplus = (len(large) - len(small)) // 2
        if not surplus:
            return
        for path in _longer_paths(large, small)[:surplus]:
            ours, theirs = path & large, path & small
            large ^= ours | theirs
            small ^= ours | theirs


def _longer_paths(large: set[Edge], small: set[Edge]) -> list[set[Edge]]:
    """Paths of both classes with one edge more of ``large``."""
    ends: dict[int, list[Edge]] = {}
    for edge in sorted(large | small):
        for worker in edge:
            ends.setdefault(worker, []).append(edge)
    found, seen = [], set()
    for start in sorted(ends):
        if len(ends[start]) != 1 or start in seen:
            continue
        path, worker = set[Edge](), start
        while True:
            seen.add(worker)
            following = [edge for edge in ends[worker] if edge not in path]
            if not following:
                break
            path.add(following[0])
            worker = sum(following[0]) - worker
        if 2 * len(path & large) > len(path):
            found.append(path)
    return found


# All workers paired anew in every round: a round-robin tournament by the circle method.
#
# With n players there are n − 1 rounds (n where n is odd, and one rests in each) in which every two
# meet exactly once. A player's opponent is a formula, so that nobody needs a table of n² pairs.


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
