"""The Statement: a privacy guarantee, whom it protects, and the assumptions that it rests on.

A statement holds the :class:`~forethought.values.mechanism.Mechanism` itself, so that anyone can
recompute it.
:func:`~forethought.accounting.verification.verify` recomputes what follows from it and refuses a
statement that does not hold.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, reduce
from importlib import resources
from itertools import accumulate, chain, combinations, groupby, pairwise
from operator import add
from pathlib import Path
from typing import Any, Protocol, TypeVar

from forethought import __version__
from forethought.accounting.accountants import ACCOUNTANTS, EXACT, NETWORK, Accountant, amplified
from forethought.accounting.attack_bounds import Attained, bounded
from forethought.accounting.exact import why_wide
from forethought.accounting.interval import Interval, at_least, at_most
from forethought.values.caveats import Caveat, caveats, choice, of_role
from forethought.values.checks import optional, real, settle, whole
from forethought.values.mechanism import (
    SAMPLINGS,
    Adjacency,
    Correlated,
    FullBatch,
    Mechanism,
    Rounds,
    Sampling,
)
from forethought.values.plan import NAMES, Plan, Releases, Transcript, together
from forethought.values.serialisation import build, digest, exact_keys, parse, plain, write_text
from forethought.values.signing import Signature

# The subject of a Statement, as its owner declares it, and the files that it rests on, by hash.
#
# None of these entries follows from the mechanism.


# Most characters of one entry of About, which is printed on one line.
LONGEST = 500
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class About:
    """The data, the purpose, the person who answers for it, and the model file.

    Args:
        data: name of the data.
        date: date of the data or of the run, in the owner's own format.
        purpose: purpose of the model.
        responsible: the person who answers for the model.
        model: ``sha256:`` and the hash of the model file; a run with a folder writes it.

    Raises:
        TypeError: an entry is not text.
        ValueError: an entry is empty, has several lines or more than 500 characters; ``model`` has
            another form.
    """

    data: str | None = None
    date: str | None = None
    purpose: str | None = None
    responsible: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            if not isinstance(value, str):
                raise TypeError(f"about {name} must be text, not {value!r}")
            if not value.strip() or len(value) > LONGEST or not value.isprintable():
                raise ValueError(f"about {name} must be one line of at most {LONGEST} characters")
        if self.model is not None and not _HASH.fullmatch(self.model):
            raise ValueError(f"about model must be sha256: and 64 digits, not {self.model!r}")

    def to_dict(self) -> dict[str, Any]:
        """Every entry, ready for JSON."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Any) -> About:
        """The inverse of :meth:`to_dict`."""
        return build(cls, values)

    def lines(self) -> list[tuple[str, str]]:
        """Pairs (title, text) of the entries that the owner gave."""
        words = {"model": "Model file"}
        return [(words.get(name, name.title()), text) for name, text in vars(self).items() if text]


# Most files that a statement may rest on.
_MOST_FILES = 20
# All files that a run on one machine writes, and those that several holders agree on.
OF_RUN = (
    *("plan.json", "transcript.json", "phases.json", "job.toml", "model.json", "prepared.json"),
    "ledger.json",  # of a data set's book
)
OF_HOLDERS = ("federation.json", "gossip.json", "policy.json", "roster.json")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.(json|toml)")


@dataclass(frozen=True)
class Evidence:
    """The files that the statement of a run rests on, by hash.

    So the statement cannot be copied beside the files of another run unnoticed.

    Args:
        code: hash of the library's source code (:func:`code_digest`).
        files: name → ``sha256:`` and the hash of a file beside the statement: the plan, the
            transcript, declarations about the data, agreements of several holders.

    Raises:
        TypeError: ``files`` is not a mapping, or has more than 20 names.
        ValueError: a name contains a path, or a hash has another form.
    """

    code: str
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if not isinstance(self.files, Mapping) or len(self.files) > _MOST_FILES:
            raise TypeError(f"evidence files must be an object of at most {_MOST_FILES} names")
        for name in self.files:
            if not isinstance(name, str) or not _FILE.fullmatch(name) or name == "statement.json":
                raise ValueError(f"evidence must be files beside the statement, not {name!r}")
        for value in (self.code, *self.files.values()):
            if not isinstance(value, str) or not _HASH.fullmatch(value):
                raise ValueError(f"evidence must be sha256: and 64 digits, not {value!r}")

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Evidence:
        """The evidence of these file contents and of the installed source code."""
        return cls(code_digest(), {name: content_hash(data) for name, data in files.items()})


def content_hash(content: bytes) -> str:
    """``sha256:`` and the hash of the content: the form in which statements name files."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@cache
def code_digest() -> str:
    """Hash of the names and contents of the library's source files, as they are installed."""
    root = Path(__file__).parents[1]
    return digest(
        {
            path.relative_to(root).as_posix(): content_hash(path.read_bytes())
            for path in (*root.rglob("*.py"), *root.rglob("*.toml"))
        }
    )


# The caveats that every Statement has: they follow from mechanism, accountant and randomness alone.
#
# So verification recomputes :func:`required`, and refuses a statement that leaves one out.


@dataclass(frozen=True)
class Randomness:
    """The source of a run's random numbers, as far as the guarantee depends on it.

    Args:
        seeded_noise: a person chose the seed of the noise: there is no guarantee.
        seeded_sampling: a person chose the seed of the batches: no amplification is claimed.
        grid: the noise is a discrete Gaussian added to a sum on a grid, all in whole numbers.

    Raises:
        TypeError: an argument is not a bool.
    """

    seeded_noise: bool = False
    seeded_sampling: bool = False
    grid: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be true or false, not {value!r}")


# All random numbers come from the operating system's entropy; the noise is floating-point.
SECRET = Randomness()


def suited(accountant: Mapping[str, Any], randomness: Randomness) -> dict[str, Any]:
    """The accountant that fits the randomness; a seed of the batches may replace it by another."""
    known = ACCOUNTANTS[accountant["kind"]].batches_known
    if known is not None and randomness.seeded_sampling and not randomness.seeded_noise:
        return {"kind": known}
    return dict(accountant)


def following(
    mechanism: Mechanism, accountant: Mapping[str, Any], randomness: Randomness
) -> dict[str, bool]:
    """Code of each caveat that depends on the arguments alone → True if it applies.

    Args:
        mechanism: the rounds that were released.
        accountant: kind and details of the accountant; the kind is registered.
        randomness: the source of the random numbers.
    """
    choosing = ACCOUNTANTS[accountant["kind"]].batches_known is None
    seeded = randomness.seeded_noise
    hidden = amplified(mechanism) and not randomness.seeded_sampling
    drawn = any(not isinstance(part.sampling, FullBatch) for part in mechanism)
    return {
        "correlated-noise": mechanism.correlated,
        "no-noise": any(part.noise_multiplier == 0 for part in mechanism),
        "seeded-noise": seeded,
        "seeded-search": randomness.seeded_sampling and choosing and not seeded,
        **dict.fromkeys(("public-size", "pseudo-random", "separate-records", "other-runs"), True),
        "secret-noise": not seeded,
        "secret-batches": hidden,
        "stated-batches": drawn and not hidden,
        "floating-point-noise": not randomness.grid,
    }


def required(
    mechanism: Mechanism, accountant: Mapping[str, Any], randomness: Randomness
) -> tuple[Caveat, ...]:
    """The caveats that such a statement must have; arguments as in :func:`following`."""
    found = following(mechanism, accountant, randomness)
    implied = ACCOUNTANTS[accountant["kind"]].implied(mechanism)
    return (*implied, *(Caveat(code) for code, holds in found.items() if holds))


# The releases themselves: the transcript's rows, as a Statement lists and compares them.


# The combined noise of several releases in one round may differ in the last digits.
_ROUNDING = 1e-9
# The name of a release that belongs to no round of training.
SCORE = "score of the trial"
# Names of releases of the preparation, which comes before the rounds of training.
OF_PREPARATION = frozenset(NAMES.values())


@dataclass(frozen=True)
class StatedRelease:
    """A number of consecutive equal releases.

    Args:
        name: name of the released quantity.
        count: number of releases, at least 1.
        noise_multiplier: standard deviation of the noise over what one contribution can add.

    Raises:
        TypeError, ValueError: no name or one of several lines; a number out of range.
    """

    name: str
    count: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise TypeError(f"a release needs a name, not {self.name!r}")
        if not self.name.isprintable():
            raise ValueError(f"the name of a release must be one line, not {self.name!r}")
        settle(self, count=whole("count", self.count))
        settle(self, noise_multiplier=real("noise_multiplier", self.noise_multiplier, least=0))


_Item = TypeVar("_Item")
# A row of a transcript, or a row of a statement's list of releases.
TranscriptRow = Releases | StatedRelease


def listed(rows: Iterable[TranscriptRow]) -> tuple[StatedRelease, ...]:
    """A transcript's rows as a statement lists them: consecutive equal rows become one."""
    found = [StatedRelease(row.name, row.count, row.noise_multiplier) for row in rows]
    merged = groupby(found, key=lambda row: (row.name, row.noise_multiplier))
    return tuple(
        StatedRelease(name, sum(row.count for row in same), sigma) for (name, sigma), same in merged
    )


def _by_name(releases: Iterable[StatedRelease]) -> dict[str, list[StatedRelease]]:
    found: dict[str, list[StatedRelease]] = {}
    for row in releases:
        found.setdefault(row.name, []).append(row)
    return found


def _count(rows: Iterable[StatedRelease]) -> int:
    return sum(row.count for row in rows)


# Caveats of a run that may end before its last round while all rounds are accounted.
STOPPED = frozenset({"phases-fixed", "stopped-early"})


def _left_in(mechanism: Mechanism, releases: Sequence[StatedRelease]) -> Mechanism | None:
    """The accounted rounds that were released, where the run skipped some.

    None if a round has several releases, or if the releases do not fit the mechanism's order.
    """
    if len({row.name for row in releases}) != 1:
        return None
    parts, left = list(mechanism), []
    for row in releases:
        count = row.count
        while count and parts:
            like = parts.pop(0)
            if math.isclose(like.noise_multiplier, row.noise_multiplier, rel_tol=_ROUNDING):
                left.append(replace(like, count=min(count, like.count)))
                count -= left[-1].count
                if not count and like.count > left[-1].count:
                    parts.insert(0, replace(like, count=like.count - left[-1].count))
        if count:
            return None
    return Mechanism(*left, adjacency=mechanism.adjacency)


def difference(
    releases: Iterable[StatedRelease],
    mechanism: Mechanism,
    *,
    stopped: bool = False,
    score_noise: float | None = None,
) -> str | None:
    """The first difference between releases and accounted rounds, in words; None if there is none.

    All releases of one round together count as one with noise σ⁻² = Σ σ_j⁻² (Andrew et al. 2021,
    Theorem 1).

    Args:
        stopped: results decided when the run ended, so that the releases may cover fewer rounds
            than the mechanism.
        score_noise: noise multiplier of the scores of trials, where a search accounts for them.
    """
    releases = tuple(releases)
    scores = [row for row in releases if row.name == SCORE]
    for row in scores:
        if row.noise_multiplier != score_noise:
            return f"{row.name!r} with noise {row.noise_multiplier:.6g} is not accounted"
    if _count(scores) > 1:
        return f"{SCORE!r} was released more than once, and is accounted once"
    if before := [row for row in releases if row.name in OF_PREPARATION]:
        left = _after(before, mechanism)
        if left is None:
            return "the preparation of the data was released otherwise than it is accounted"
        mechanism = left
    releases = tuple(row for row in releases if row.name not in (*OF_PREPARATION, SCORE))
    by_name = _by_name(releases)
    if stopped:
        done_rounds = max(map(_count, by_name.values()), default=0)
        if 0 < done_rounds < len(mechanism):
            mechanism = _left_in(mechanism, releases) or mechanism.first(done_rounds)
    # Names that are released once in every round.
    names = {name: rows for name, rows in by_name.items() if _count(rows) == len(mechanism)}
    if not names:
        return f"no release is listed {len(mechanism)} times, once in each round"
    for row in releases:
        if row.name not in names:
            return f"{row.name!r} was released besides the rounds, and is not accounted"
    every: tuple[Iterable[Rounds | StatedRelease], ...] = (mechanism, *names.values())
    noises = ([(one.noise_multiplier, one.count) for one in ones] for ones in every)
    for start, end, (sigma, *done) in stretches(*noises):
        if not math.isclose(together(done), sigma, rel_tol=_ROUNDING):
            return (
                f"rounds {start + 1:,} to {end:,} were released with noise "
                f"{together(done):.6g}, they are accounted with {sigma:.6g}"
            )
    return None


def _after(before: list[StatedRelease], mechanism: Mechanism) -> Mechanism | None:
    """The rounds after the preparation; None if the first rounds do not fit ``before``."""
    if _count(before) >= len(mechanism):
        return None
    for row in before:
        first = mechanism.rounds[0]
        same = (first.noise_multiplier, first.sampling, first.clipping)
        if same != (row.noise_multiplier, FullBatch(), "example") or first.count < row.count:
            return None
        mechanism = mechanism.after(row.count)
    return mechanism


def stretches(*runs: Sequence[tuple[_Item, int]]) -> Iterator[tuple[int, int, list[_Item]]]:
    """Each stretch of equal rounds: its first place, its end, and the item of each run.

    Args:
        runs: of equal length, each as pairs (item, number of rounds that have it).
    """
    ends = [list(accumulate(count for _, count in run)) for run in runs]
    for start, end in pairwise([0, *sorted({*chain(*ends)})]):
        items = (run[bisect_left(own, end)][0] for run, own in zip(runs, ends, strict=True))
        yield start, end, list(items)


def rows(releases: Iterable[StatedRelease]) -> Iterator[tuple[str, int, str]]:
    """Rows of a table: name, number of releases, and the noise multiplier or its range."""
    for name, same in _by_name(releases).items():
        noises = [row.noise_multiplier for row in same]
        low, high = min(noises), max(noises)
        noise = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
        yield name, _count(same), noise


# The Statement itself.


STATEMENT_SCHEMA = "forethought/statement/4"
# The schema of version 0.2.0: no entry "attained", and the signature is an entry of the statement.
FROZEN_SCHEMA = "forethought/statement/2"
# Schemas without an entry "evidence"; the signature is an entry of the statement.
UNBOUND_SCHEMAS = (FROZEN_SCHEMA, "forethought/statement/3")


# The entries of a stored statement in their order; checksum and signature follow them.
ENTRIES = (
    *("schema", "version", "private", "epsilon", "attained", "delta", "group", "adjacency"),
    *("rounds", "examples", "clip_norm", "plan", "mechanism", "accountant", "randomness"),
    *("releases", "attack", "adversary", "hyperparameters", "caveats", "breaks", "facts"),
    *("assumptions", "not_covered", "theorems", "about", "evidence"),
)
_ATTACK = ("false_positive_rate", "true_positive_rate")


class Accounted(Protocol):
    """The fields that :func:`account` reads of a plan; `forethought.values.plan.Plan` has them."""

    @property
    def mechanism(self) -> Mechanism: ...
    @property
    def examples(self) -> int: ...
    @property
    def delta(self) -> float: ...
    @property
    def clip_norm(self) -> float: ...
    @property
    def noise(self) -> str: ...
    @property
    def hyperparameters(self) -> Caveat | str: ...
    @property
    def not_covered(self) -> tuple[Caveat | str, ...]: ...
    def to_dict(self) -> dict[str, Any]: ...


class StatementError(ValueError):
    """A statement cannot be read, or does not hold."""


@dataclass(frozen=True)
class Statement:
    """A guarantee with everything that is needed to recompute it.

    Args:
        mechanism: the accounted rounds.
        delta: the δ at which ε is given.
        epsilon: certified interval of the mechanism's ε; the upper end is the guarantee if
            :attr:`private` is True.
        group: number of records of one person that are protected together.
        attack: pairs (false-positive rate, highest true-positive rate any attacker can reach).
        accountant: the accountant of ε: ``{"kind": "exact"}``, or another registered kind with
            its details.
        randomness: the source of the run's random numbers.
        caveats: what breaks the guarantee, its assumptions, uses of the data that it does not
            cover, and the way in which the plan's numbers were chosen.
        releases: the releases by name; empty for a plan that was not run.
        examples: number of records, if known.
        clip_norm: the bound C on one contribution at the beginning, if known.
        plan: hash of the plan that was run (:func:`plan_digest`), if there is one.
        version: the library's version.
        signature: signature of all other entries, in statements of :data:`UNBOUND_SCHEMAS`.
        about: the data and the model that the statement is about, as its owner declares them.
        attained: the ε that a named data set has: the true ε lies between it and the upper end of
            ``epsilon``. None if no attack is known, or only one (ε, δ) is proven.
        schema: the schema of the stored form.
        evidence: the files that the statement of a run rests on, once it is saved beside them.
    """

    mechanism: Mechanism
    delta: float
    epsilon: Interval
    group: int
    attack: tuple[tuple[float, float], ...]
    accountant: Mapping[str, Any] = field(default_factory=lambda: {"kind": EXACT})
    randomness: Randomness = SECRET
    caveats: tuple[Caveat, ...] = ()
    releases: tuple[StatedRelease, ...] = ()
    examples: int | None = None
    clip_norm: float | None = None
    plan: str | None = None
    version: str = __version__
    signature: Signature | None = None
    about: About | None = None
    attained: Attained | None = None
    schema: str = STATEMENT_SCHEMA
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        settle(self, caveats=caveats(self.caveats))

    @property
    def private(self) -> bool:
        """True if there is a guarantee: ε is finite and no caveat breaks it."""
        return math.isfinite(self.epsilon.upper) and not self.breaks

    @property
    def guarantee(self) -> float:
        """The guaranteed ε: the interval's upper end, or ∞ if a caveat breaks the guarantee."""
        return self.epsilon.upper if self.private else math.inf

    @property
    def breaks(self) -> tuple[Caveat, ...]:
        """The caveats that break the guarantee; empty if none does."""
        return of_role(self.caveats, "breaks")

    @property
    def facts(self) -> tuple[Caveat, ...]:
        """The caveats that state inputs of the accounting."""
        return of_role(self.caveats, "fact")

    @property
    def assumptions(self) -> tuple[Caveat, ...]:
        """The assumptions that the guarantee rests on."""
        return of_role(self.caveats, "assumption")

    @property
    def not_covered(self) -> tuple[Caveat, ...]:
        """Uses of private data outside the guarantee."""
        return of_role(self.caveats, "not-covered")

    @property
    def hyperparameters(self) -> str:
        """The way in which the plan's numbers were chosen, in words."""
        return "; ".join(map(str, of_role(self.caveats, "choice")))

    @property
    def way(self) -> Accountant:
        """The registered accountant."""
        return ACCOUNTANTS[self.accountant["kind"]]

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of data sets for which ε holds."""
        return self.way.adjacency(self.mechanism)

    @property
    def rounds(self) -> int:
        """The number of rounds that are accounted."""
        return len(self.mechanism)

    @property
    def adversary(self) -> str:
        """The attacker's assumed view and knowledge; the text continues "The attacker"."""
        return self.way.adversary(self.mechanism)

    @property
    def theorems(self) -> tuple[str, ...]:
        """The results that the accounting rests on."""
        known = self.mechanism
        if self.schema in UNBOUND_SCHEMAS:  # of an epoch that was begun they say what proves it all
            epochs = (replace(part, count=part.sampling.rounds_per_epoch) for part in known)
            known = Mechanism(*epochs, adjacency=known.adjacency)
        return self.way.theorems(known, self.group)

    def of_run(self, released: Iterable[TranscriptRow]) -> Statement:
        """The same statement with the run's releases: the rows of its transcript.

        Raises:
            ValueError: the releases are not the rounds that the statement accounts.
        """
        found = replace(self, releases=listed(released), signature=None)
        wrong = found.unaccounted()
        if wrong is not None:
            raise ValueError(f"no statement is written: {wrong}")
        return found

    def unaccounted(self) -> str | None:
        """The first difference between listed releases and accounted rounds; None if none."""
        return difference(
            self.releases,
            self.mechanism,
            stopped=any(caveat.code in STOPPED for caveat in self.caveats),
            score_noise=self.accountant.get("score_noise"),
        )

    def of_model(self, file_hash: str) -> Statement:
        """The same statement, unsigned, about the model file with that hash (``sha256:…``)."""
        return replace(self, about=replace(self.about or About(), model=file_hash), signature=None)

    def resting_on(self, files: Mapping[str, bytes]) -> Statement:
        """The same statement, unsigned, bound to the contents of the files it is saved beside."""
        return replace(self, evidence=Evidence.of(files), signature=None, schema=STATEMENT_SCHEMA)

    def sentences(self, listed: str = "statement.md") -> tuple[str, str, str]:
        """Three plain sentences: the guarantee, its meaning for an attacker, its limits.

        Args:
            listed: name of the page that lists the assumptions.
        """
        if not self.private:
            return _not_private(self)
        what = "This model is" if self.releases else "A model from these rounds would be"
        if _of_statistics(self):
            what = "These statistics are" if self.releases else "These statistics would be"
        first = (
            f"{what} ({at_most(self.epsilon.upper)}, {at_most(self.delta, '.3g')})-"
            f"differentially private for {records(self)} ({self.adjacency}), proven for "
            f"{self.way.covered}."
        )
        rate, power = self.attack[min(1, len(self.attack) - 1)]
        second = (
            f"An attacker who wants to tell {sought(self)}, who knows everything but "
            f"{self.way.unknown(self.mechanism)}, and who accepts {rate:.1%} false alarms, "
            f"succeeds at most {at_most(power, '.1%')} of the time."
        )
        count = len(self.not_covered)
        third = f"It rests on {len(self.assumptions)} stated assumptions" + (
            f" and does not cover {count} named {'use' if count == 1 else 'uses'} of the "
            f"data: read them in {listed}."
            if count
            else f", listed in {listed}, and names no use of the data outside it."
        )
        return first, second, third

    def content(self) -> dict[str, Any]:
        """Every entry except checksum and signature, ready for JSON."""
        made = {name: plain(getattr(self, name)) for name in ENTRIES if self._has(name)}
        made["attack"] = [dict(zip(_ATTACK, row, strict=True)) for row in self.attack]
        for name in ("breaks", "facts", "assumptions", "not_covered"):
            made[name] = list(map(self._worded, getattr(self, name)))
        return made

    def _has(self, entry: str) -> bool:
        """True if this statement stores the entry: its schema has it, and ``about`` was given."""
        since = {"attained": (FROZEN_SCHEMA,), "evidence": UNBOUND_SCHEMAS}
        return self.schema not in since.get(entry, ()) and (entry, self.about) != ("about", None)

    def _worded(self, one: Caveat) -> str:
        """The sentence of a caveat in statements of this schema."""
        return (self.schema in UNBOUND_SCHEMAS and one.kind.earlier) or str(one)

    def to_json(self) -> str:
        """The statement as one JSON object, with a checksum that detects accidental edits."""
        content = self.content()
        signature = {} if self.signature is None else {"signature": plain(self.signature)}
        return json.dumps({**content, "checksum": digest(content), **signature}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Statement:
        """The inverse of :meth:`to_json`.

        Raises:
            StatementError: not a statement, an unknown schema, or edited after it was made.
        """
        try:
            return _read(parse(text))
        except StatementError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise StatementError(f"not a statement: {error!s}") from error

    @classmethod
    def load(cls, path: str | Path) -> Statement:
        """Read a statement.json.

        Raises:
            OSError: the file cannot be read.
            StatementError: not a statement; the message names the file.
        """
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (StatementError, UnicodeDecodeError) as error:
            raise StatementError(f"{path}: {error}") from error

    @classmethod
    def load_of_run(cls, path: Path) -> Statement:
        """Read a run's statement.json as :meth:`load` does; its plan and transcript lie beside it.

        Raises:
            OSError, StatementError: as of :meth:`load`, or one of them is of another run.
        """
        statement = cls.load(path)
        for name, own in (statement.evidence.files if statement.evidence else {}).items():
            held = path.with_name(name)
            told = name in ("plan.json", "transcript.json") and held.is_file()
            if told and content_hash(held.read_bytes()) != own:
                raise StatementError(f"{path}: the {name} beside it is of another run: restore it")
        return statement

    def to_markdown(self) -> str:
        """The statement as a Markdown page for a data-protection officer."""
        return _markdown(self)

    def save(self, folder: str | Path, files: Mapping[str, str] | None = None) -> Statement:
        """Write ``statement.json`` and ``statement.md`` into ``folder``.

        Args:
            files: name → text of the files that the statement rests on; they are written first.

        Returns:
            The statement as written: bound to ``files`` if there are any.
        """
        folder, made = Path(folder), self
        if files:
            made = self.resting_on({name: text.encode() for name, text in files.items()})
        for name, text in (files or {}).items():
            write_text(folder / name, text)
        write_text(folder / "statement.md", made.to_markdown())
        write_text(folder / "statement.json", made.to_json() + "\n")
        return made


def caveats_of(plan: Accounted) -> tuple[Caveat, ...]:
    """The caveats that a statement must take from a plan, with the unit of a contribution."""
    found = caveats(plan.not_covered)
    contribution = getattr(plan, "contribution", None)
    if getattr(contribution, "kind", None) == "persons" and "persons" not in {
        one.code for one in found
    }:
        found = (*found, Caveat("persons", f"at most {contribution.records}"))  # type: ignore[union-attr]
    augmentation = getattr(plan, "augmentation", None)
    if augmentation is not None:
        found = (Caveat("augmented", augmentation.describe()), *found)
    return found


def account(
    plan_or_mechanism: Accounted | Mechanism,
    delta: float | None = None,
    *,
    group: int | None = None,
    records_per_person: int | None = None,
    released: int | None = None,
    seeded: bool = False,
    not_covered: Iterable[Caveat | str] = (),
    accountant: Mapping[str, Any] | None = None,
    randomness: Randomness | None = None,
    releases: Iterable[TranscriptRow] = (),
) -> Statement:
    """Account for a plan or a mechanism: its guarantee as a Statement.

    Args:
        plan_or_mechanism: a Plan (its own δ is the default) or a Mechanism (δ is required).
        delta: in (0, 1).
        group: number of records that are protected together; default: the plan's records per
            person, or 1.
        records_per_person: another name for ``group``.
        released: account only for this number of first rounds, as for a run that stopped early;
            the caveat "ended-early" has the ε of all rounds, in case results decided that.
        seeded: short for ``randomness=Randomness(seeded_noise=True)``.
        not_covered: uses of private data outside the mechanism besides those of the plan, and any
            other :class:`~forethought.values.caveats.Caveat`, assumptions included.
        accountant: a kind of :data:`~forethought.accounting.accountants.ACCOUNTANTS` with its
            details. Default: the exact one, for rounds that were fixed before the run.
        randomness: the source of the random numbers. Default: secrets of the operating system.
            Seeded noise leaves no guarantee, seeded sampling leaves one without amplification.
            ``grid`` is taken from the plan where there is one.
        releases: rows of the run's transcript.

    Returns:
        A Statement with the accountant's certified interval.

    Raises:
        StatementError: the kind of accountant is unknown.
        UnsupportedMechanismError: no theorem covers the mechanism.
        ValueError, TypeError: an argument is out of range or of the wrong kind.
    """
    if group is not None and records_per_person not in (None, group):
        raise ValueError("group and records_per_person are one thing: give one of them")
    together = records_per_person if group is None else group
    own: dict[str, Any] = {}
    chosen = Caveat("not-stated")
    named = caveats(not_covered)
    randomness = randomness or Randomness(seeded_noise=seeded)
    given = plan_or_mechanism
    if isinstance(given, Mechanism):
        mechanism = given
        if delta is None:
            raise ValueError("a bare mechanism needs delta=, for example 1e-5")
    elif not isinstance(getattr(given, "mechanism", None), Mechanism):
        wanted = "a plan, as forethought.plan makes one, or a Mechanism"
        raise TypeError(f"account takes {wanted}, not {type(given).__name__}")
    else:
        mechanism = given.mechanism
        delta = given.delta if delta is None else delta
        if together is None:
            together = int(getattr(given, "records_per_person", 1))
        own = {"examples": given.examples, "clip_norm": given.clip_norm}
        own["plan"] = plan_digest(given.to_dict())
        chosen = choice(given.hyperparameters)
        named = (*caveats_of(given), *named)
        randomness = replace(randomness, grid=given.noise == "grid")
    planned = mechanism
    if released is not None:
        mechanism = mechanism.first(released)
    delta = real("delta", delta, above=0, below=1)
    group = whole("records protected together", 1 if together is None else together)
    chosen_way = {"kind": EXACT} if accountant is None else accountant
    registered(chosen_way)
    accountant = suited(chosen_way, randomness)
    if len(mechanism) < len(planned):
        named = (*named, ended_early(len(mechanism), planned, delta, group, accountant))
    found = bounded(ACCOUNTANTS[accountant["kind"]], mechanism, delta, group, accountant)
    return Statement(
        mechanism=mechanism,
        delta=delta,
        group=group,
        accountant=accountant,
        randomness=randomness,
        caveats=(*required(mechanism, accountant, randomness), *named, chosen),
        releases=listed(releases),
        **own,
        **found._asdict(),
    )


# The caveat of a run that released fewer rounds than planned, and accounts for these alone.
ENDED = "ended-early"


def ended_early(
    released: int, planned: Mechanism, delta: float, group: int, accountant: Mapping[str, Any]
) -> Caveat:
    """The caveat that only ``released`` rounds were released, with the ε of all planned ones.

    The attacker is the accountant's. The words name δ and the group, and are true of any of them.
    """
    if accountant["kind"] == NETWORK:
        # Its gains are those of the released rounds. Neighbours see what any observer is sent.
        accountant = {"kind": EXACT}
    whole = ACCOUNTANTS[accountant["kind"]].interval(planned, delta, group, accountant).upper
    return _ended(released, len(planned), whole, delta, group)


def _ended(released: int, planned: int, epsilon: float, delta: float, group: int) -> Caveat:
    who = "one record" if group == 1 else f"{group} records together"
    at = f"at delta {at_most(delta, '.6g')} for {who} ({released:,} were released)"
    return Caveat(ENDED, f"epsilon {at_most(epsilon)} of all {planned:,} {at}")


def whole_epsilon(early: Caveat) -> float:
    """The ε of all planned rounds that a caveat "ended-early" has. Raises ValueError: none."""
    _, epsilon, *_ = early.detail.split()
    return float(epsilon)


def registered(accountant: Mapping[str, Any]) -> Accountant:
    """The registered accountant of that kind; its details must be exactly those of the kind.

    Raises:
        StatementError: the kind is unknown.
        ValueError: a detail is missing or unknown.
    """
    kind = accountant.get("kind")
    if kind not in ACCOUNTANTS:
        raise StatementError(
            f"unknown accountant {kind!r}; this version knows {', '.join(ACCOUNTANTS)}"
        )
    way = ACCOUNTANTS[kind]
    exact_keys(f"accountant {kind!r}", accountant, {"kind", *way.details})
    return way


# Entries in which a plan and its run may differ; verification compares each of them separately.
_OF_THE_RUN = ("mechanism", "not_covered", "hyperparameters")


def plan_digest(plan: Mapping[str, Any]) -> str:
    """Hash of a plan's JSON object without what its run may change: mechanism and caveats."""

    def kept(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: kept(entry) for key, entry in value.items() if key not in _OF_THE_RUN}
        return value

    return digest(plain(kept(plan)))


def _read(values: Any) -> Statement:
    schemas = (STATEMENT_SCHEMA, *UNBOUND_SCHEMAS)
    content: dict[str, Any] = {"schema": type(values).__name__}
    if isinstance(values, dict):
        content = dict(values)
    if (schema := content.get("schema")) not in schemas:
        maker = content.get("version")
        by = f"; it was made by forethought {maker}, which can verify it" if maker else ""
        text = f"schema {schema!r}, expected {STATEMENT_SCHEMA!r}{by}"
        raise StatementError(f"not a statement this version can read: {text}")
    signature = content.pop("signature", None)
    if signature is not None and content["schema"] == STATEMENT_SCHEMA:
        raise StatementError("a signature of statements of this schema lies in a file beside them")
    checksum = content.pop("checksum", None)
    if checksum != digest(content):
        raise StatementError("the statement was edited after it was made: its checksum differs")
    registered(content["accountant"])
    exact_keys("epsilon", content["epsilon"], {"lower", "upper"})
    attack = []
    for row in content["attack"]:
        exact_keys("attack", row, set(_ATTACK))
        rate, power = (real(name, row[name], least=0, most=1) for name in _ATTACK)
        attack.append((rate, power))
    if not attack:
        raise StatementError("the statement lists no false-alarm rates: it bounds no attack")
    statement = Statement(
        mechanism=Mechanism.from_dict(content["mechanism"]),
        delta=real("delta", content["delta"], above=0, below=1),
        epsilon=Interval(_end(content["epsilon"]["lower"]), _end(content["epsilon"]["upper"])),
        group=whole("group", content["group"]),
        attack=tuple(attack),
        accountant=dict(content["accountant"]),
        randomness=build(Randomness, content["randomness"]),
        caveats=tuple(map(Caveat.from_dict, content["caveats"])),
        releases=tuple(build(StatedRelease, row) for row in content["releases"]),
        examples=optional(whole, "examples", content["examples"]),
        clip_norm=optional(real, "clip_norm", content["clip_norm"], above=0),
        plan=optional(_text, "plan", content["plan"]),
        version=_text("version", content["version"]),
        signature=optional(_built(Signature), "signature", signature),
        about=optional(_built(About), "about", content.get("about")),
        attained=optional(_attained, "attained", content.get("attained")),
        schema=content["schema"],
        evidence=optional(_built(Evidence), "evidence", content.get("evidence")),
    )
    _same_content(statement.content(), content)
    return statement


def _same_content(made: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Check that each entry equals the one that follows from the other entries.

    Raises:
        StatementError: an entry differs.
    """
    exact_keys("statement", found, set(made))
    for name, value in made.items():
        if value != found[name] or type(value) is not type(found[name]):
            text = f"its other entries. Found {_short(found[name])}, expected {_short(value)}"
            raise StatementError(
                f"the statement was edited: its {name} does not follow from {text}"
            )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _end(value: object) -> float:
    return math.inf if value == "infinity" else real("epsilon", value, least=0)


def _attained(name: str, value: Any) -> Attained:
    exact_keys(name, value, {"epsilon", "data"})
    found = math.inf if value["epsilon"] == "infinity" else real(name, value["epsilon"], above=0)
    return Attained(found, _text("data", value["data"]))


def _built(kind: type[Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: build(kind, value, name)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(f"{name} must be one line of text, not {value!r}")
    return value


def json_schema() -> dict[str, Any]:
    """The published JSON schema of ``statement.json``."""
    text = resources.files("forethought.accounting").joinpath("statement.schema.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    rounds = schema["$defs"]["rounds"]["properties"]
    rounds["sampling"]["oneOf"] = [_sampling_schema(kind) for kind in SAMPLINGS.values()]
    return schema


def _sampling_schema(kind: type[Sampling]) -> dict[str, Any]:
    """The JSON schema of one kind of sampling: its name, counts and rates."""
    numbers: dict[str, dict[str, Any]] = {
        one.name: {"type": "integer", "minimum": 1}
        if one.type in ("int", int)
        else {"type": "number", "exclusiveMinimum": 0}
        for one in fields(kind)
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["kind", *numbers],
        "properties": {"kind": {"const": kind.kind}, **numbers},
    }


# ---- in words

_PROTECTED = {
    "add-or-remove": "the presence of {0} in {2}",
    "zero-out": "{0}, against the same data with {1} blanked out",
    "replace-one": "{0}, against the same data with {1} replaced by any other",
}
# The first words of a statement without a guarantee.
_BROKEN = {
    "no-noise": "No noise was added: this model is not differentially private.",
    "seeded-noise": "Not private: seeded.",
    "seeded-search": "Not private: seeded.",
}
_MOST_PARTS = 20


def records(statement: Statement) -> str:
    """The protected unit: "one record", "one person" or "any 3 records together"."""
    if _of_all_rows(statement):
        return "one person"
    one = unit(statement)
    return f"one {one}" if statement.group == 1 else f"any {statement.group} {one}s together"


def unit(statement: Statement) -> str:
    """The unit of ``examples``: "record" or "person"."""
    return "person" if of_persons(statement) else "record"


def of_persons(statement: Statement) -> bool:
    """True if one example holds all the data of one person."""
    return any(one.code == "persons" for one in statement.caveats)


def _of_statistics(statement: Statement) -> bool:
    return any(one.code == "statistics" for one in statement.caveats)


def _of_all_rows(statement: Statement) -> bool:
    """True of statistics of which all records of one person are protected together."""
    persons = Caveat("rows-of-persons", f"{statement.group}")
    return _of_statistics(statement) and persons in statement.caveats


def told(statement: Statement, one: Caveat) -> str:
    """The sentence of a caveat for people; statistics have no weights and no derivatives.

    The stored statement has one sentence for both, so that earlier ones are read as they are.
    """
    return (_of_statistics(statement) and one.kind.statistics) or one.sentence


def protected(statement: Statement) -> str:
    """The neighbouring relation in words, with a note on persons who have several records."""
    who, that = records(statement), "these"
    if who.startswith("one "):
        who, that = f"any {who}", who.replace("one", "that", 1)
    if of_persons(statement):
        more = "All that a person has in the data counts as one, however many records it is"
    elif _of_all_rows(statement):
        more = f"At most {statement.group} records in the data are one person's: they count as one"
    else:
        more = (
            "If one person has several records in the data, ask for the statement for as many "
            f"together: this one is about {records(statement)}"
        )
    data = "the data" if _of_statistics(statement) else "the training data"
    return f"{_PROTECTED[statement.adjacency].format(who, that, data)}. {more}"


def sought(statement: Statement) -> str:
    """The aim of an attacker: "whether one record was used", or "what one record says"."""
    if statement.adjacency == "add-or-remove":
        return f"whether {records(statement)} was used"
    # With these, whether there is such a record is not protected.
    who = records(statement)
    return f"what {who} {'says' if who.startswith('one ') else 'say'}"


def _not_private(statement: Statement) -> tuple[str, str, str]:
    causes = statement.breaks
    code = causes[0].code if causes else "no-noise"
    second = "An attacker who sees it may learn anything about any record."
    if code == "no-noise":
        third = "Train with a budget or a noise multiplier to get a guarantee."
        return _BROKEN[code], second, third
    why = "; ".join(map(str, causes))
    first = f"{_BROKEN.get(code, 'Not private.')} {why[:1].upper()}{why[1:]}."
    if math.isfinite(statement.epsilon.upper):
        second = (
            f"With random numbers that nobody can draw again, the same rounds would have "
            f"ε = {at_most(statement.epsilon.upper)} at δ = {at_most(statement.delta, '.3g')}; "
            "this model has not."
        )
    return first, second, "Train again without a seed to get a guarantee."


def _clipped(statement: Statement, part: Rounds) -> str:
    if part.clipping == "example":
        return unit(statement)
    return part.clipping if part.groups is None else f"{part.clipping} ({part.groups:,} a round)"


def _sampling(sampling: Sampling) -> str:
    values = {name: value for name, value in vars(sampling).items() if value is not None}
    if not values:
        return sampling.words()
    shown = ", ".join(
        f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int) else f"{name} {value:.6g}"
        for name, value in values.items()
    )
    return f"{sampling.kind.replace('-', ' ')} ({shown})"


def _noise(part: Rounds) -> str:
    if not isinstance(part, Correlated):
        return f"{part.noise_multiplier:.6g}"
    return f"{part.noise_multiplier:.6g}, correlated over rounds ({part.strategy.words()})"


def truth(statement: Statement) -> list[tuple[str, str]]:
    """Pairs (title, text): the reason for a wide interval, and the ε that data sets attain."""
    s = statement
    wide: list[tuple[str, str]] = []
    if s.accountant["kind"] == EXACT and (why := why_wide(s.mechanism, s.group, s.epsilon)):
        wide = [("why the ends of ε are apart", why)]
    found, upper = statement.attained, statement.epsilon.upper
    if found is None:
        return wide
    factor = 1.0 if found.epsilon == upper else upper / found.epsilon
    return [
        *wide,
        ("ε that data attain", f"at least {at_least(found.epsilon, '.6g')}: {found.data}"),
        ("proven over attained", f"at most {at_most(factor)} times"),
    ]


def numbers(statement: Statement) -> list[tuple[str, str]]:
    """Pairs (title, text): both ends of ε, :func:`truth`, δ, who is protected, how it was found."""
    s, one = statement, unit(statement)
    upper = "ε (upper end: the guarantee)"
    if not s.private:
        upper = "ε that secret random numbers would have given (no guarantee)"
    return [
        (upper, at_most(s.epsilon.upper, ".6g")),
        ("ε (lower end: how tightly it is computed)", at_least(s.epsilon.lower, ".6g")),
        *truth(s),
        ("δ", at_most(s.delta, ".6g")),
        ("adjacency", s.adjacency),
        (f"{one}s protected together", f"{s.group}"),
        (f"{one}s in the data", "not stated" if s.examples is None else f"{s.examples:,}"),
        ("clip norm", "not stated" if s.clip_norm is None else f"{s.clip_norm:g}"),
        (s.way.rounds, f"{len(s.mechanism):,}"),
        ("accountant", f"{s.accountant['kind']}, forethought {s.version}"),
    ]


def _done(s: Statement) -> list[str]:
    lines = ["Nothing is known to have been released: this is the statement of a plan."]
    if s.releases:
        lines = ["| released | times | noise multiplier |", "| --- | --- | --- |"]
        for name, count, noise in rows(s.releases):
            lines.append(f"| {_as_text(name)} | {count:,} | {noise} |")
    heads = ("rounds", "noise multiplier", "sampling", "clipped contribution")
    lines += ["", f"| {' | '.join(heads)} |", "| --- | --- | --- | --- |"]
    for part in s.mechanism.rounds[:_MOST_PARTS]:
        cells = (f"{part.count:,}", _noise(part), _sampling(part.sampling), _clipped(s, part))
        lines.append(f"| {' | '.join(cells)} |")
    if (more := len(s.mechanism.rounds) - _MOST_PARTS) > 0:
        lines.append(f"| … {more} more parts | | | |")
    done = [*s.way.done(s.accountant), f"Hyperparameters: {_as_text(s.hyperparameters)}"]
    return [*lines, "", *(f"{text}." for text in done)]


def _meaning(statement: Statement) -> list[str]:
    if not statement.private:
        return []
    return [
        "## What they mean",
        "",
        f"δ should be well below one over the number of {unit(statement)}s. Whatever test such an "
        f"attacker uses to tell {sought(statement)}, this is the best they can do:",
        "",
        "| false alarms accepted | detections, at most |",
        "| --- | --- |",
        *(f"| {rate:.1%} | {at_most(power, '.2%')} |" for rate, power in statement.attack),
        "",
        "Guessing blindly gives as many detections as false alarms.",
        "",
    ]


def _as_text(text: str) -> str:
    """Text that a person wrote, with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", text)


def _markdown(s: Statement) -> str:
    """The statement as a page."""
    lines = ["# Privacy statement", "", _as_text(" ".join(s.sentences())), ""]
    if s.breaks:
        lines += ["## Why there is no guarantee", ""]
        lines += [f"- {_as_text(str(text))}: {text.kind.reason}." for text in s.breaks] + [""]
    if s.about is not None:
        lines += ["## What it is about", "", "As its owner says:", ""]
        lines += [f"- {what}: {_as_text(text)}" for what, text in s.about.lines()] + [""]
    lines += [
        "## What is protected, and against whom",
        "",
        f"- Protected: {protected(s)}.",
        f"- The attacker {s.adversary}.",
        *(f"- {_as_text(text[:1].upper() + text[1:])}." for text in map(str, s.facts)),
        "",
        "## The numbers",
        "",
        "| quantity | value |",
        "| --- | --- |",
        *(f"| {what} | {_as_text(value)} |" for what, value in numbers(s)),
        "",
        *_meaning(s),
        "## What was done",
        "",
        *_done(s),
        "",
        "## What it rests on",
        "",
        *(f"- {_as_text(told(s, text))}." for text in s.assumptions),
        *(f"- Theorem: {text}" for text in s.theorems),
        "",
        "## What is not covered",
        "",
        *([f"- {_as_text(str(text))}." for text in s.not_covered] or ["- Nothing was named."]),
        "",
        "## Check it yourself",
        "",
        "`forethought account --verify FOLDER` recomputes what follows from the mechanism in its "
        "statement.json, compares it with the files that it rests on, and says what cannot be "
        "recomputed. `--public-key FILE` with the signer's public key checks who signed it.",
        *([] if s.evidence is None else ["", f"It rests on {', '.join(s.evidence.files)}."]),
    ]
    return "\n".join([*lines, ""])


# One statement from those of several holders.
#
# Only the releases of the holders that have a person's records depend on them. If each person is in
# the data of one holder, the largest ε holds (parallel composition). If a person is in the data of
# several holders, their releases compose, since each holder adds independent noise.


# Most choices of holders that are composed one by one; more are bounded by all holders together.
MOST_CHOICES = 500


def disjoint(statements: Mapping[str, Statement]) -> Statement:
    """The statement for all holders, where no two of them hold records of the same person.

    Args:
        statements: name of a holder → its statement; all have the same adjacency, group and kind
            of accountant.

    Returns:
        The statement with the largest guaranteed ε, each at the largest δ of all.

    Raises:
        StatementError: no statements, or different adjacencies, groups or kinds of accountant.
    """
    kinds = {(one.adjacency, one.group, one.accountant["kind"]) for one in statements.values()}
    if len(kinds) != 1:
        text = "statements of one adjacency, group and view have a maximum"
        raise StatementError(f"{text}; these are {kinds or None}")
    delta = max(one.delta for one in statements.values())
    names = ", ".join(sorted(statements)[:20]) + (", …" if len(statements) > 20 else "")
    distinct = {
        (one.mechanism, str(one.accountant), one.randomness): one for one in statements.values()
    }
    # If results ended their parts, the largest ε of all planned rounds holds for everybody, at the
    # largest δ: at the δ of its own statement, another's rounds may have more.
    ended = [note for one in statements.values() for note in one.caveats if note.code == ENDED]
    at = f" at delta {at_most(delta, '.6g')} "
    worst = sorted(ended, key=whole_epsilon)[-1:]
    ended = [Caveat(ENDED, re.sub(r" at delta \S+ ", at, note.detail)) for note in worst]
    # Of every holder: what breaks its guarantee, and what it does not cover.
    uses = [
        note
        for one in statements.values()
        for note in (*one.breaks, *one.not_covered)
        if note not in required(one.mechanism, one.accountant, one.randomness)
    ]
    found = [
        account(
            one.mechanism,
            delta,
            group=one.group,
            accountant=one.accountant,
            randomness=one.randomness,
            not_covered=(*uses, *ended, Caveat("disjoint-holders", names)),
        )
        for one in distinct.values()
    ]
    return max(found, key=lambda one: (one.guarantee, one.epsilon.upper))


def shared(
    mechanisms: Sequence[Mechanism],
    holders: int,
    delta: float,
    *,
    plans: Sequence[Plan] = (),
    transcripts: Sequence[Transcript] | None = None,
    randomness: Randomness | None = None,
    not_covered: Iterable[Caveat | str] = (),
) -> Statement:
    """The statement for persons whose records are held by up to ``holders`` holders.

    Args:
        mechanisms: the mechanism of each holder, all that it may release.
        holders: at least 1; a number above the number of mechanisms counts as all.
        delta: in (0, 1).
        plans: the holders' different plans: the statement has their caveats, and at each holder it
            protects as many records of a person together as any of them; (): one record.
        transcripts: what each holder released; None: all that it may.
        randomness, not_covered: as in :func:`account`.

    Returns:
        The statement of the choice of holders with the largest guaranteed ε.

    Raises:
        StatementError: no mechanism, different adjacencies, or plans for persons and for records.
    """
    planned = mechanisms
    if transcripts is not None:
        each = zip(planned, transcripts, strict=True)
        mechanisms = [done.mechanism(own.adjacency) for own, done in each if len(done)]
    adjacencies = {mechanism.adjacency for mechanism in mechanisms}
    if len(adjacencies) != 1 or len({plan.contribution.kind == "persons" for plan in plans}) > 1:
        text = "releases compose under one adjacency, and of persons or of records, not of both"
        raise StatementError(f"{text}: plan all alike; these have {sorted(adjacencies) or 'none'}")
    whole("holders", holders)
    group = max((plan.records_per_person for plan in plans), default=1)
    detail = f"up to {holders} of {len(mechanisms)} holders"
    notes = (Caveat("several-holders", detail), *chain(*map(caveats_of, plans)), *not_covered)
    done, most = (sum(map(len, some)) for some in (mechanisms, planned))
    if done < most:
        of_all = shared(planned, holders, delta, plans=plans, randomness=randomness)
        notes = (*notes, _ended(done, most, of_all.epsilon.upper, delta, group))
    found = [
        account(reduce(add, some), delta, group=group, not_covered=notes, randomness=randomness)
        for some in _choices(mechanisms, min(holders, len(mechanisms)))
    ]
    worst = max(found, key=lambda one: (one.guarantee, one.epsilon.upper))
    if not plans:
        return worst
    kept = (note for note in worst.caveats if note.code != "not-stated")
    return replace(worst, caveats=(*kept, *(choice(plan.hyperparameters) for plan in plans)))


def _choices(mechanisms: Sequence[Mechanism], holders: int) -> list[tuple[Mechanism, ...]]:
    # Of equal mechanisms a choice has at most ``holders``, and which of them is one choice.
    kinds = Counter(mechanisms).items()
    pool = [one for one, count in kinds for _ in range(min(count, holders))]
    if math.comb(len(pool), holders) <= 100 * MOST_CHOICES:
        found = list(dict.fromkeys(combinations(pool, holders)))
        if len(found) <= MOST_CHOICES:
            return found
    return [tuple(mechanisms)]  # the composition of all mechanisms bounds any choice
