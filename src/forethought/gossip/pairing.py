"""Edge colouring of a graph into matchings: no two edges of one colour share a worker.

A bipartite graph of maximum degree d needs d colours (König 1916), any other at most d + 1
(Vizing 1964; the construction of Misra and Gries 1992). Colour classes are then made equally large,
up to one edge (de Werra 1971): the edges of two colours form paths and cycles; swapping the colours
on a path with one more edge of the larger class moves an edge to the smaller one.
"""

from __future__ import annotations

from itertools import pairwise

from forethought.gossip.graphs import Edge, Graph

_Table = list[dict[int, int]]  # worker → colour → the neighbour at the end of that edge


def colour(graph: Graph) -> tuple[tuple[Edge, ...], ...]:
    """The edges of ``graph`` as sorted matchings, whose sizes differ by at most 1."""
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
        # The path of both colours from ``other`` cannot end at ``one``: with the new edge it would
        # be an odd cycle.
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
    # Now ``theirs`` is free at ``one`` and at some worker of the fan. Up to that worker, each edge
    # of the fan takes the colour of the next edge.
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
    """Paths in the union of both classes that have one more edge of ``large``."""
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


# New pairs of all workers in every round: a round-robin tournament by the circle method.
#
# With n players there are n − 1 rounds (n if n is odd; then one player rests in each). Each two
# players meet exactly once. A formula gives the opponent, so no table of n² pairs is needed.


def rounds(players: int) -> int:
    """The number of rounds of the tournament, at least 1."""
    return max(1, players - 1 + players % 2)


def opponent(player: int, players: int, round: int) -> int:
    """The opponent of ``player`` in a round; ``player`` itself if it rests."""
    last = players - 1 + players % 2
    if player == last:
        return round
    other = (2 * round - player) % last
    if other == player:
        other = last
    return player if other >= players else other
