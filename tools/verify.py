"""A second verifier: ε of a run folder's statement, by other means than the library's.

python tools/verify.py RUN        # status 0 and one line "agrees: …", or 1 and what differs

It needs Python and NumPy, reads statement.json and the files that it rests on (all there, each with
the SHA-256 that the statement names, none unnamed), writes nothing, and shares no code with the
library, whose integrals of characteristic functions it does not use. The line of outcomes of a
round (two mixtures of Gaussians, P and Q) is cut into narrow cells, and the cells become a privacy
loss distribution on a grid, twice: never less distinguishable than the round (each cell's masses of
P and of Q are kept, and spread over the grid points around it: "connect the dots", Doroshenko et
al. 2022), and never more (cells are merged until the ratio of their masses lies on the grid:
post-processing). Both are composed by FFT under an exponential tilt, in both directions; mass
outside the window (Chernoff) and rounding are added to δ above and taken off below. So ε lies
between two ends, at most a share of WIDTH apart.

A statement agrees where its ε is not below the lower end; where it is not below the upper one
either, this program has proven it by itself. Rounding errors are allowed for at several times what
is seen, not proven. Reproduced: Poisson sampling and full batches, for records and groups of them,
under fixed rounds. Everything else is refused in words (status 2). Only ε, δ, the rounds and who is
protected are judged. What the files say of the run is believed: see docs/statements.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 2e-3
BYTES, DEPTH, PARTS, ROUNDS, GROUP, SECONDS = 4_000_000, 24, 300, 10**7, 64, 300
EVIDENCE = [
    *("plan.json", "transcript.json", "phases.json", "job.toml", "model.json", "prepared.json"),
    *("federation.json", "gossip.json", "policy.json", "roster.json", "ledger.json"),
]
BREAKS = {"no-noise", "seeded-noise", "seeded-search", "data-dependent-noise"}
_FILE, _FILES = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.(json|toml)"), 20
_CELLS, _GRID = 2_000_000, 2**22
_X = 13.0  # standard deviations: less than 1e-37 of a Gaussian is farther out
_TAIL = 1e-34
_FARTHEST = 20.0
_SAME = 1e-12  # losses this near a grid point count as on it
_ULP = 2.0**-52
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
Mixture = tuple[tuple[float, float], ...]  # (shift, weight) of unit Gaussians
Law = tuple[int, "np.ndarray"]  # grid index of the first mass, masses


class DifferenceError(Exception):
    """What the files claim is not so."""


class RefusedError(Exception):
    """Something this program cannot judge."""


# ---- files of anybody


def content(folder: str, name: str) -> bytes:
    """Of a regular file of limited size."""
    try:
        handle = os.open(Path(folder) / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise RefusedError(f"{name} cannot be read: {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise RefusedError(f"{name} is no regular file")
        data = file.read(BYTES + 1)
    if len(data) > BYTES:
        raise RefusedError(f"{name} has more than {BYTES} bytes")
    return data


def parsed(name: str, data: bytes) -> Any:
    """JSON of limited depth, each key once."""
    depth = most = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', data, re.S):
        depth += (token[0] in b"[{") - (token[0] in b"]}")
        most = max(most, depth)
    if most > DEPTH:
        raise RefusedError(f"{name} is nested more than {DEPTH} deep")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    def nothing(word: str) -> None:
        raise ValueError(f"{word} is no number of JSON")

    try:
        return json.loads(data.decode(), object_pairs_hook=once, parse_constant=nothing)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"{name} is no JSON: {ascii(str(error))[:200]}") from None


def evidence(folder: str, claim: Any) -> dict[str, bytes]:
    """Name → content of every file that the statement rests on; each has the hash it names."""
    if claim.get("evidence") is None:
        raise RefusedError("the statement does not name the files that it rests on")
    named = entry(claim, "evidence", "files")
    well = isinstance(named, dict) and len(named) <= _FILES and all(map(_FILE.fullmatch, named))
    if not well:
        raise RefusedError("the statement rests on what are no files beside it")
    here = [name for name in EVIDENCE if os.path.lexists(Path(folder) / name)]
    for name in ("plan.json", "transcript.json", *here):
        if name not in named:
            raise DifferenceError(f"the statement does not name the {name} that it rests on")
    held = {}
    for name, value in named.items():
        if not os.path.lexists(Path(folder) / name):
            raise DifferenceError(f"the {name} that the statement rests on is not there")
        held[name] = content(folder, name)
        if value != f"sha256:{hashlib.sha256(held[name]).hexdigest()}":
            raise DifferenceError(f"{name} is not the file that the statement rests on")
    return held


def entry(values: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(values, dict) or key not in values:
            raise RefusedError(f"there is no entry {'.'.join(path)}")
        values = values[key]
    return values


def number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RefusedError(f"{name} is {ascii(value)[:60]}; it must be from {low:g} to {high:g}")
    return float(value)


def whole(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise RefusedError(f"{name} is {ascii(value)[:60]}; it must be a whole number up to {most}")
    return value


Part = tuple[float, float, str, int | None]  # noise multiplier, rate (∞: all), clipping, groups


def part_of(values: Any) -> tuple[Part, int]:
    """One row of rounds, and how many there are."""
    if not isinstance(values, dict) or "strategy" in values:
        raise RefusedError("noise that is correlated over rounds is not reproduced here")
    kind, clipping = entry(values, "sampling", "kind"), entry(values, "clipping")
    if kind not in ("poisson", "full-batch"):
        raise RefusedError(f"sampling {ascii(kind)[:40]} is not reproduced here")
    if clipping not in ("example", "group"):
        raise RefusedError(f"clipping {ascii(clipping)[:40]} is not known")
    rate = math.inf
    if kind == "poisson":
        rate = number("rate", entry(values, "sampling", "rate"), 1e-12, 1)
    groups = values.get("groups")
    groups = None if groups is None else whole("groups", groups, 10**9)
    sigma = number("noise_multiplier", entry(values, "noise_multiplier"), 1e-3, 1e9)
    return (sigma, rate, clipping, groups), whole("count", entry(values, "count"), ROUNDS)


def parts_of(rows: Any) -> list[tuple[Part, int]]:
    """Rows of rounds in order; equal neighbours are one."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= PARTS:
        raise RefusedError(f"a mechanism must have 1 to {PARTS} rows of rounds")
    found: list[tuple[Part, int]] = []
    for part, count in map(part_of, rows):
        if found and found[-1][0] == part:
            found[-1] = part, found[-1][1] + count
        else:
            found.append((part, count))
    if sum(count for _, count in found) > ROUNDS:
        raise RefusedError(f"more than {ROUNDS} rounds are not reproduced here")
    return found


def same(one: list[tuple[Part, int]], other: list[tuple[Part, int]]) -> bool:
    """Row by row alike; noise that several releases make together, to the last digits."""
    return len(one) == len(other) and all(
        a[1:] == b[1:] and m == n and math.isclose(a[0], b[0], rel_tol=1e-9)
        for (a, m), (b, n) in zip(one, other, strict=True)
    )


# ---- one round: what it is worst at, and its losses on a grid


def moved(part: Part, adjacency: str, hits: int) -> float:
    """How far so many records in a batch move the noised sum, in standard deviations of noise."""
    sigma, _, clipping, groups = part
    each = 2 if clipping == "group" or adjacency == "replace-one" else 1
    return each * (hits if groups is None else min(hits, groups)) / sigma


def pair_of(part: Part, adjacency: str, group: int) -> tuple[Mixture, Mixture, bool]:
    """P and Q of a Poisson round; and whether P against Q is meant for losses above 0 only."""
    rate = part[1]
    weights = [
        math.comb(group, k) * rate**k * (1.0 - rate) ** (group - k) for k in range(group + 1)
    ]
    near = {k: moved(part, adjacency, k) for k in range(group + 1)}
    if adjacency != "replace-one" or (part[2] == "group" and group == 1):
        mirrored = adjacency == "replace-one" and rate < 1
        return tuple(zip(near.values(), weights, strict=True)), ((0.0, 1.0),), mirrored
    if part[2] == "group":
        raise RefusedError("several replaced records under group clipping and Poisson sampling")
    # Around what the other records add: one data set's records move it right, the other's left.
    right = tuple((near[k] / 2, w) for k, w in enumerate(weights))
    return right, tuple((-shift, w) for shift, w in right), False


def log_density(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    """log of a mixture's density over N(0, 1)'s."""
    terms = [s * x - s * s / 2 + math.log(w) for s, w in mixture if w > 0]
    return np.logaddexp.reduce(terms, axis=0) if len(terms) > 1 else terms[0]


def merged(mass: np.ndarray, e: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray]:
    """Pieces go to the next grid point until what is merged there has the point's ratio.

    ``e`` is the mass that P has more than the point's ratio gives it; so a piece from below, which
    has less, or from above, which has more, takes it to 0. Any merging is post-processing.
    """
    for _ in range(60):
        lift = math.expm1(h) * mass - math.exp(h) * e  # what a piece lacks one point higher
        drop = -math.expm1(-h) * mass + math.exp(-h) * e  # what it has too much one point lower
        with np.errstate(all="ignore"):
            rise = np.where(lift > 0, np.clip(np.roll(e, -1) / lift, 0, 0.45), 0)
            fall = np.where(drop > 0, np.clip(-np.roll(e, 1) / drop, 0, 0.45), 0)
        stay = 1 - rise - fall
        mass = stay * mass + np.roll(rise * mass, 1) + np.roll(fall * mass, -1)
        e = stay * e - np.roll(rise * lift, 1) + np.roll(fall * drop, -1)
    return mass, e


def laws(right: Mixture, left: Mixture, mirrored: bool, h: float) -> dict[str, list[Law]]:
    """Losses of P and of Q on the grid h·ℤ: an upper and a lower law for each direction."""
    ends = [s for s, _ in (*right, *left)]
    if max(ends) - min(ends) > _FARTHEST:
        raise RefusedError("so little noise that a round shows nearly everything")
    line = np.linspace(min(ends) - _X, max(ends) + _X, 40_001)
    widths = np.diff(log_density(right, line) - log_density(left, line)) * 4 / h
    least = 200 * (1 + max(ends) - min(ends)) * (line[1] - line[0])
    steps = np.concatenate([[0.0], np.cumsum(np.maximum(widths, least))])
    if steps[-1] > _CELLS:
        raise RefusedError("the losses of a round span more grid points than there is room for")
    edges = np.interp(np.linspace(0, steps[-1], math.ceil(steps[-1]) + 1), steps, line)
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    x = middle + half * _NODES[:, None]
    normal = -x * x / 2 - math.log(math.sqrt(2 * math.pi))
    on_p, on_q = normal + log_density(right, x), normal + log_density(left, x)
    tops = on_p.max(axis=0), on_q.max(axis=0)
    sums = [
        np.exp(on - top).T @ _WEIGHTS * half for on, top in zip((on_p, on_q), tops, strict=True)
    ]
    p, mean = np.exp(tops[0]) * sums[0], tops[0] - tops[1] + np.log(sums[0] / sums[1])
    border = log_density(right, edges) - log_density(left, edges)
    # Above: both masses of a cell, on the grid points around all of its losses.
    low = np.floor(np.minimum(border[:-1], mean) / h - 1e-9)
    high = np.maximum(np.ceil(np.maximum(border[1:], mean) / h + 1e-9), low + 1)
    share = np.clip(np.expm1(low * h - mean) / np.expm1((low - high) * h), 0, 1)
    first = int(low.min()) - 2
    size = int(high.max()) - first + 3
    up = np.bincount((low - first).astype(int), p * (1 - share), size)
    up += np.bincount((high - first).astype(int), p * share, size)
    # Below: cells of nearest grid points, merged. `e` is what P has more than the point's ratio.
    near = np.rint(mean / h)
    place = (near - first).astype(int)
    mass = np.bincount(place, p, size)
    e = np.bincount(place, -p * np.expm1(near * h - mean), size)
    mass, e = merged(mass, e, h)
    at = (np.arange(size) + first) * h
    off = np.abs(e) > _SAME * mass
    # What is still off the grid loses up to a step: P's losses fall, Q's losses fall.
    forth = np.where(off & (e < 0), 0, mass) + np.roll(np.where(off & (e < 0), mass, 0), -1)
    with np.errstate(over="ignore", invalid="ignore"):
        of_q = np.nan_to_num((mass - e) * np.exp(-at), nan=0.0, posinf=0.0).clip(0)
        up_q = np.nan_to_num(up * np.exp(-at), nan=0.0, posinf=0.0)
    back = np.where(off & (e > 0), 0, of_q) + np.roll(np.where(off & (e > 0), of_q, 0), 1)
    if not mirrored:
        last = -(first + size - 1)
        return {
            "above": [(first, up), (last, up_q[::-1])],
            "below": [(first, forth), (last, back[::-1])],
        }
    # H(α) = 1 - α + α H(1/α) for α < 1 (Zhu, Dong and Wang 2022, Theorem 11).
    both = {}
    for name, law in (("above", up), ("below", forth)):
        top = law[1 - first :]
        under = (top * np.exp(-at[1 - first :]))[::-1]
        rest = 1 - math.fsum(top) - math.fsum(under)
        if rest < -1e-9:
            raise RefusedError("a round at distance 2 whose mirrored curve is not convex")
        both[name] = [(-len(top), np.concatenate([under, [max(rest, 0.0)], top]))]
    return both


# ---- all rounds: composed, and ε at δ


def trimmed(law: Law) -> Law:
    """Without masses at the ends that all together count less than TAIL."""
    kept = np.flatnonzero(law[1] > _TAIL * 1e-6)
    return law[0] + int(kept[0]), law[1][kept[0] : kept[-1] + 1]


class Composed:
    """The sum of independent losses, each law so many times, in one direction."""

    def __init__(self, laws: list[tuple[Law, int]], h: float) -> None:
        self.h = h
        self.laws = [(trimmed(law), count) for law, count in laws]
        self.points = [(first + np.arange(len(law))) * h for (first, law), _ in self.laws]
        self.rounds = sum(count for _, count in laws)
        with np.errstate(divide="ignore"):
            self.logs = [np.log(law) for (_, law), _ in self.laws]

    def cumulant(self, t: float) -> tuple[float, float]:
        """log E exp(t·loss) of the sum, and its derivative: the tilted mean."""
        total = mean = 0.0
        for (_, count), logs, at in zip(self.laws, self.logs, self.points, strict=True):
            terms = logs + t * at
            top = terms.max()
            weights = np.exp(terms - top)
            mass = weights.sum()
            total += count * (top + math.log(mass))
            mean += count * float(weights @ at) / mass
        return total, mean

    def tilt(self, wanted: float) -> float:
        """The tilt under which the sum's mean is ``wanted``."""
        low, high = 0.0, 1.0
        while self.cumulant(high)[1] < wanted and high < 1e4:
            low, high = high, 2 * high
        for _ in range(12):  # near is enough
            middle = (low + high) / 2
            low, high = (middle, high) if self.cumulant(middle)[1] < wanted else (low, middle)
        return high

    def epsilon(self, delta: float, sign: int) -> float:
        """ε at δ, δ's doubts counted against (+1) or for (-1) the mechanism."""
        tilts = np.geomspace(1e-2, 1e4, 25)
        bound = min((self.cumulant(t)[0] - math.log(delta)) / t for t in tilts)
        center = 0.9 * max(0.0, bound)  # Chernoff's bound is a little too large
        for _ in range(5):
            found = self._near(center, delta, sign)
            if abs(found - center) <= 4 * self.h or found in (0, math.inf):
                break
            center = found
        return max(0.0, found + sign * self.rounds * (_SAME + 1e-14))

    def _near(self, center: float, delta: float, sign: int) -> float:
        t = self.tilt(center)
        total = self.cumulant(t)[0]
        middle = round(center / self.h)
        n = 2**12
        while True:
            reach = n / 2 * self.h
            outside = min(self._beyond(t, total, middle * self.h, reach, s) for s in (1, 4, 16, 64))
            if outside < 1e-9 or n >= _GRID:
                break
            n *= 2
        spectrum, shift = np.ones(n // 2 + 1, complex), 0
        for ((first, _), count), logs, at in zip(self.laws, self.logs, self.points, strict=True):
            terms = np.exp(logs + t * at - (logs + t * at).max())
            folded = np.bincount(np.arange(len(terms)) % n, terms / terms.sum(), n)
            spectrum *= np.fft.rfft(folded) ** count
            shift += first * count
        # Position 0 of the window is its middle, less half of it.
        start = middle - n // 2
        sums = np.roll(np.fft.irfft(spectrum, n), (shift - start) % n)
        # What is asked is near the middle; farther left the tilt's reciprocal would overflow.
        begin = n // 2 - min(n // 4, int(40 / ((t + 1) * self.h)))
        far, sums = (np.arange(begin, n) - n // 2) * self.h, sums[begin:]
        if 8 * t * self.h > 40 or total - t * middle * self.h > 700:
            return math.inf if sign > 0 else 0.0  # too coarse a grid
        scale = math.exp(total - t * middle * self.h)
        above = np.cumsum((sums * np.exp(-t * far))[::-1])[::-1]
        less = np.cumsum((sums * np.exp(-(t + 1) * far))[::-1])[::-1]
        rounding = 16 * _ULP * (self.rounds + math.log2(n)) * float(np.abs(spectrum).mean())
        doubt = scale * (outside + rounding * min(n, 1 / -math.expm1(-t * self.h)))
        doubt = 1.01 * doubt * math.exp(8 * t * self.h) + self.rounds * _TAIL
        target = delta - sign * doubt
        if target <= 0:
            return math.inf if sign > 0 else 0.0
        # δ between two grid points is above[j] - e^(ε - middle) less[j], j the right one.
        deltas = scale * (above[1:] - np.exp(far[:-1]) * less[1:])
        over = np.flatnonzero(deltas[: 3 * n // 4 - begin] > target)
        if not len(over):
            return max(0.0, float(far[0]) + middle * self.h) if sign > 0 else 0.0
        j = int(over[-1]) + 1
        return max(0.0, math.log((above[j] - target / scale) / less[j]) + middle * self.h)

    def _beyond(self, t: float, total: float, middle: float, reach: float, step: float) -> float:
        """Chernoff's bound on the tilted mass farther than ``reach`` from ``middle``."""
        s = step * 12 / reach
        up = self.cumulant(t + s)[0] - total - s * (middle + reach)
        down = self.cumulant(t - s)[0] - total + s * (middle - reach)
        return math.exp(min(up, 0.0)) + math.exp(min(down, 0.0))


def bracket(
    parts: list[tuple[Part, int]],
    adjacency: str,
    group: int,
    delta: float,
    seconds: float = SECONDS,
) -> tuple[float, float]:
    """Two ends around ε, at most a share of WIDTH apart; the method is this module's docstring."""
    end = time.monotonic() + seconds
    pairs: dict[tuple[Mixture, Mixture, bool], int] = {}
    squares = whole_squares = 0.0
    for part, count in parts:
        most = moved(part, adjacency, group)
        whole_squares += count * most * most
        if part[1] >= 1:
            squares += count * most * most
        else:
            key = pair_of(part, adjacency, group)
            pairs[key] = pairs.get(key, 0) + count
    if squares:
        # Gaussians of a fixed shift add up to one.
        pairs[((math.sqrt(squares), 1.0),), ((0.0, 1.0),), False] = 1
    found = _refined(pairs, delta, end)
    farthest = math.sqrt(whole_squares)
    if adjacency == "replace-one" and len(pairs) > (squares > 0) and farthest < _FARTHEST:
        # Not amplified at all: where half lines prove less than that, this holds.
        other = _refined({(((farthest, 1.0),), ((0.0, 1.0),), False): 1}, delta, end)
        found = min(found[0], other[0]), min(found[1], other[1])
    return found


def _refined(
    pairs: dict[tuple[Mixture, Mixture, bool], int], delta: float, end: float
) -> tuple[float, float]:
    h, low, high, asked = 0.02, 0.0, math.inf, [0, 1]
    while time.monotonic() < end:
        made = {key: laws(*key, h) for key in pairs}

        def ends(name: str, way: int, h: float = h, made: Any = made) -> float:
            chosen = [(made[key][name][way % len(made[key][name])], n) for key, n in pairs.items()]
            return Composed(chosen, h).epsilon(delta, -1 if name == "below" else 1)

        low = max(low, *(ends("below", way) for way in asked))
        above = {way: ends("above", way) for way in asked}
        high = min(high, max(above.values()))
        if high - low <= WIDTH * high < math.inf or high < 1e-6:
            return low, high
        # The direction that is worse is refined further.
        asked = [way for way in asked if above[way] >= low]
        h /= min(16.0, 1.5 * math.sqrt((high - low) / (WIDTH * high))) if low else 8.0
    raise RefusedError(
        f"ε is between {low:.4g} and {high:.4g}; to say more would take longer than this"
    )


# ---- what the folder claims


def judge(folder: str) -> str:
    """One line of agreement.

    Raises:
        DifferenceError: a claim that is not so. RefusedError: one that cannot be judged here.
    """
    claim = parsed("statement.json", content(folder, "statement.json"))
    if entry(claim, "schema") != "forethought/statement/4":
        raise RefusedError("statement.json is no statement of the schema that is known here")
    kind = entry(claim, "accountant", "kind")
    if kind not in ("exact", "known-batches"):
        raise RefusedError(f"accountant {ascii(kind)[:40]}: only fixed rounds are judged")
    drawn, codes = entry(claim, "randomness"), {entry(one, "code") for one in claim["caveats"]}
    if entry(claim, "private") is not True or entry(claim, "breaks") != [] or codes & BREAKS:
        raise RefusedError("the statement itself says that there is no guarantee")
    seeded = entry(drawn, "seeded_noise"), entry(drawn, "seeded_sampling")
    if seeded != (False, kind == "known-batches"):
        raise DifferenceError("the promise does not go with where the random numbers came from")
    parts = parts_of(entry(claim, "mechanism", "rounds"))
    adjacency = entry(claim, "mechanism", "adjacency")
    if adjacency not in ("add-or-remove", "zero-out", "replace-one"):
        raise RefusedError(f"adjacency {ascii(adjacency)[:40]} is not known")
    group = whole("group", entry(claim, "group"), GROUP)
    delta = number("delta", entry(claim, "delta"), 1e-30, 0.5)
    stated = number("epsilon.upper", entry(claim, "epsilon", "upper"), 0, 1e3)
    if entry(claim, "plan") is None:
        raise RefusedError("only runs of a plan are judged: the statement names none")
    files = evidence(folder, claim)
    transcript, plan = (parsed(name, files[name]) for name in ("transcript.json", "plan.json"))
    ran = compare_transcript(transcript, parts)
    compare_plan(plan, parts, claim, files)
    if kind == "known-batches":
        # Each round as if it held everybody; presence is then not what is protected.
        parts = [((sigma, math.inf, *rest), count) for (sigma, _, *rest), count in parts]  # type: ignore[misc]
        adjacency = "zero-out" if adjacency == "add-or-remove" else adjacency
    if entry(claim, "adjacency") != adjacency:
        raise DifferenceError("the adjacency is not that of the rounds")
    low, high = bracket(parts, adjacency, group, delta)
    if stated < low:
        raise DifferenceError(
            f"the statement claims ε = {stated:.6g} at δ = {delta:.6g}; its rounds have at least "
            f"{low:.6g}"
        )
    proven = "proven here" if stated >= high else f"to {WIDTH:.1%}, the width agreed on"
    return (
        f"agrees: ε = {stated:.6g} at δ = {delta:.6g} is stated, between {low:.6g} and {high:.6g} "
        f"is found ({proven}); {claim['rounds']} rounds, as in the plan, {ran} of them ran; "
        "nothing else that it says was judged"
    )


def begins(parts: list[tuple[Part, int]], first: list[tuple[Part, int]]) -> bool:
    own = parts[: len(first)]
    if own and first[-1][1] < own[-1][1]:
        own = [*own[:-1], (own[-1][0], first[-1][1])]
    return bool(first) and same(first, own)


def compare_transcript(values: Any, parts: list[tuple[Part, int]]) -> int:
    """What was released, in order, is what was accounted, or its beginning; the number of it."""
    if entry(values, "others"):
        raise RefusedError("the transcript has releases that belong to no round")
    rows = []
    for row in entry(values, "rounds"):
        noises = [number("noise", one[1], 1e-3, 1e9) for one in entry(row, "noises")]
        times = whole("times", row.get("times", 1), 10**6)
        sigma = 1 / math.sqrt(times * math.fsum(one**-2 for one in noises))
        rows.append({**entry(row, "like"), "noise_multiplier": sigma, "count": entry(row, "count")})
    found = parts_of(rows)
    if not begins(parts, found):
        raise DifferenceError("the transcript has other rounds than the statement accounts for")
    return sum(count for _, count in found)


def compare_plan(values: Any, parts: list[Any], claim: Any, files: dict[str, bytes]) -> None:
    """The statement is about the plan: δ, records, whom it protects, what is released, in order."""
    plan, own = entry(values, "privacy"), entry(values, "privacy", "mechanism")
    told = any(one["code"] == "persons" for one in claim["caveats"])
    persons = entry(plan, "contribution", "kind") == "persons"
    if persons:
        whole("records of a person", entry(plan, "contribution", "records"), 10**9)
    asked = tomllib.loads(files.get("job.toml", b"").decode()).get("data", {})
    unknown = asked and not {"person", "records_per_person"} & set(asked)
    for what, planned, stated in (
        ("δ", entry(plan, "delta"), claim["delta"]),
        ("records a person", plan.get("records_per_person", 1), claim["group"]),
        ("number of records", entry(plan, "examples"), entry(claim, "examples")),
        ("number of rounds", sum(n for _, n in parts), entry(claim, "rounds")),
        ("adjacency", entry(own, "adjacency"), claim["mechanism"]["adjacency"]),
        ("unit", persons, told and not unknown),
    ):
        if planned != stated:
            raise DifferenceError(f"plan and statement do not have one {what}")
    rows, before = [], plan.get("preparation") or {"statistics": []}
    for name in entry(before, "statistics"):
        sigma = before["ranges_noise" if name == "ranges" else "noise_multiplier"]
        sigma = number("noise of the preparation", sigma, 1e-3, 1e9) * (1 + (name == "norms"))
        full = {"sampling": {"kind": "full-batch"}, "clipping": "example", "count": 1}
        rows.append({**full, "noise_multiplier": sigma})
    planned = parts_of([*rows, *entry(own, "rounds")])
    others = "federation.json" in files or "gossip.json" in files
    if not begins(planned, parts) or not (others or same(planned, parts)):
        raise DifferenceError("the statement's rounds are not those of the plan")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: verify.py RUN", file=sys.stderr)
        return 2
    try:
        print(judge(arguments[0]))
    except DifferenceError as error:
        print(f"differs: {error}")
        return 1
    except (RefusedError, KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        known = isinstance(error, RefusedError)
        print(f"cannot judge: {error if known else f'malformed ({type(error).__name__})'}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
