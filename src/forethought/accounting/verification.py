"""Recompute the entries of a statement, and name those that cannot be recomputed.

Each entry has one check. A check raises StatementError if the entry does not hold, returns None if
it was recomputed and holds, and otherwise returns the reason why it cannot be recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

from forethought import __version__
from forethought.accounting import exact
from forethought.accounting.accountants import ACCOUNTANTS
from forethought.accounting.adaptive import CHOSEN, FILTER, GAUSSIAN_FILTER, SELECTION, TOLERANCE
from forethought.accounting.attack_bounds import Attained, Bounded, attack_of, bounded
from forethought.accounting.interval import at_least, at_most
from forethought.accounting.statement import (
    ENDED,
    ENTRIES,
    FROZEN_SCHEMA,
    STATEMENT_SCHEMA,
    STOPPED,
    UNBOUND_SCHEMAS,
    Accounted,
    StatedRelease,
    Statement,
    StatementError,
    TranscriptRow,
    caveats_of,
    code_digest,
    ended_early,
    following,
    listed,
    of_persons,
    plan_digest,
    registered,
    required,
    stretches,
    suited,
    whole_epsilon,
)
from forethought.values import signing
from forethought.values.caveats import Caveat, caveats, choice, of_role
from forethought.values.mechanism import Mechanism, UnsupportedMechanismError

# Two machines may refine an interval a different number of times; its ends then differ relatively
# by at most this.
_ACCURACY = 2e-3
_FINE = 1e-5
_FINEST_ATTACK = 1e-4
# Largest relative difference of two computations on one machine.
_SAME = 1e-9
# Caveats of a plan that the statement of a whole search or run need not repeat.
_ANSWERED = (Caveat("search"), Caveat("chosen-phases"))
# Caveats of the plan itself: a statement has neither fewer nor more of them.
_OF_PLAN = frozenset({"persons", "rows-of-persons", "statistics", "augmented"})
# Choices that were made while the rounds ran → the accountants that allow for them.
_FILTERS = (FILTER, GAUSSIAN_FILTER)
_OF_ROUNDS = {
    "candidates": (SELECTION,),
    "phases-fixed": tuple(ACCOUNTANTS),
    **dict.fromkeys(("phases-by-results", "sizes-by-results", "noise-by-releases"), _FILTERS),
}
# Files of holders who may end before their last round, and of runs in phases.
_OF_HOLDERS = frozenset({"federation.json", "gossip.json"})
_PHASES = frozenset({"phases.json", "federation.json"})


@dataclass(frozen=True)
class ComparedEntry:
    """One entry of a statement beside its recomputed value.

    Args:
        entry: name of the entry.
        claimed: the statement's value, if it is short.
        recomputed: the recomputed value; empty if there is none.
        evidence: the source of the recomputed value; None if it cannot be recomputed.
        why: the reason why it cannot be recomputed; None if it was.
    """

    entry: str
    claimed: str
    recomputed: str
    evidence: str | None
    why: str | None = None


@dataclass(frozen=True)
class Verification:
    """The outcome of a verification.

    Args:
        statement: the statement with its recomputed entries.
        rows: one row for each entry.
    """

    statement: Statement
    rows: tuple[ComparedEntry, ...]

    @property
    def checked(self) -> tuple[str, ...]:
        """Names of the entries that were recomputed and hold."""
        return tuple(row.entry for row in self.rows if row.why is None)

    @property
    def not_checked(self) -> tuple[tuple[str, str], ...]:
        """Pairs (name of an entry, reason why it cannot be recomputed)."""
        return tuple((row.entry, row.why) for row in self.rows if row.why is not None)


@dataclass(frozen=True)
class SignatureOwner:
    """The key of a valid signature beside a statement.

    Args:
        fingerprint: fingerprint of the key; None if no key was tried.
        given: True if the reader gave the public key, False if it lies beside the statement.
    """

    fingerprint: str | None
    given: bool


@dataclass(frozen=True)
class _Case:
    """A statement, the values recomputed from its mechanism, and the files beside it."""

    claimed: Statement
    now: Bounded
    plan: Accounted | None
    model: str | None = None
    transcript: tuple[StatedRelease, ...] | None = None
    others: str | None = None
    files: Mapping[str, str] | None = None
    signer: SignatureOwner | None = None

    @property
    def of_this_version(self) -> bool:
        return self.claimed.version == __version__


def verify(statement: Statement, plan: Accounted | None = None) -> Statement:
    """Recompute a statement from the mechanism inside it.

    Args:
        plan: the plan that was run according to the statement, if available.

    Returns:
        The statement with its recomputed entries.

    Raises:
        StatementError: an entry claims more than is proven, or does not fit the other entries or
            the plan.
    """
    return check(statement, plan).statement


def check(
    statement: Statement,
    plan: Accounted | None = None,
    model: str | None = None,
    transcript: Iterable[TranscriptRow] | None = None,
    others: str | None = None,
    files: Mapping[str, str] | None = None,
    signer: SignatureOwner | None = None,
) -> Verification:
    """Recompute a statement, with a report on each entry.

    Args:
        plan: the plan that was run according to the statement, if available.
        model: hash of the model file beside the statement (``sha256:…``).
        transcript: rows of the transcript beside the statement.
        others: name of the holders' agreement with which the accountant's details were compared;
            None if they were not compared.
        files: name → hash of every file beside the statement that it may rest on; None if the
            statement is verified without a folder.
        signer: the key of the valid signature beside the statement, if there is one.

    Raises:
        StatementError: an entry claims more than is proven, or does not fit the other entries or
            the files.
    """
    try:
        way = registered(statement.accountant)
        proven = bounded(
            way, statement.mechanism, statement.delta, statement.group, statement.accountant
        )
        rows = None if transcript is None else listed(transcript)
        case = _Case(statement, proven, plan, model, rows, others, files, signer)
        found = {name: look(case) for name, look in CHECKS.items()}
    except UnsupportedMechanismError as error:
        raise StatementError(f"no theorem covers the stated mechanism: {error}") from error
    except (StatementError, signing.SignatureError) as error:
        raise StatementError(str(error)) from error
    except (KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise StatementError(f"the statement does not hold: {error!s}") from error
    now = statement
    stored = proven if statement.schema == STATEMENT_SCHEMA else proven._replace(attained=None)
    if stored != (statement.epsilon, statement.attack, statement.attained):
        now = replace(
            statement,
            **proven._asdict(),
            version=__version__,
            signature=None,
            schema=STATEMENT_SCHEMA,
        )
    return Verification(now, tuple(_compared(case, now, name, why) for name, why in found.items()))


def _epsilon(case: _Case) -> str | None:
    claimed, now = case.claimed.epsilon, case.now.epsilon
    text = f"it claims ε in {claimed:.6g} where its mechanism has {now:.6g}"
    small = claimed.upper < now.upper and claimed.upper < _finest(case)
    if small or claimed.lower > now.upper * (1 + 1e-9):
        at = at_most(case.claimed.delta, ".6g")
        raise StatementError(f"the statement does not hold: {text} at δ = {at}")
    tolerance = _ACCURACY if case.claimed.way.composed is not None else TOLERANCE
    ends = ((claimed.upper, now.upper), (claimed.lower, now.lower))
    if all(_near(a, b, _SAME * b) for a, b in ends):
        return None
    if all(_near(a, b, tolerance * max(now.upper, 1e-8)) for a, b in ends):
        return f"{_AGREES}: {now:.6g} is found here"
    if case.of_this_version or case.claimed.way.composed is None:
        raise StatementError(f"of the statement, {text}: they are not those it was made for")
    found = f"what {case.claimed.version} would have found is not known"
    return f"the upper end is a guarantee; this version finds {now:.6g}, and {found}"


# Said of a claim that differs by no more than two machines do.
_AGREES = "holds, and agrees as far as two machines do, not to the last digit"


def _near(one: float, other: float, distance: float) -> bool:
    return one == other or abs(one - other) <= distance


def _finest(case: _Case) -> float:
    """The upper end of ε at the finest accuracy, less a rounding error: a claim above it holds."""
    claimed, compose = case.claimed, case.claimed.way.composed
    if compose is None:
        return case.now.epsilon.upper / (1 + 1e-9)
    finest = exact.epsilon(
        compose(claimed.mechanism), claimed.delta, claimed.group, accuracy=_FINE
    ).upper
    return min(case.now.epsilon.upper, finest) / (1 + 1e-9)


def _attack(case: _Case) -> str | None:
    claimed = case.claimed.attack
    if [rate for rate, _ in claimed] != [rate for rate, _ in case.now.attack]:
        found, wanted = ([f"{rate:g}" for rate, _ in rows] for rows in (claimed, case.now.attack))
        raise StatementError(f"the table of attacks is not at false-alarm rates {wanted}: {found}")
    remark = None
    # Computed at most once, and only if a claim is below the proven power.
    finest = cache(partial(_finest_attack, case))
    for (rate, stated), (_, true) in zip(claimed, case.now.attack, strict=True):
        # The tolerance is relative to the distance to 1 as well: 0.999 is not 0.9999.
        distance = 10 * _ACCURACY * min(true, 1 - true) + 1e-9
        # A claim below the proven power must be proven by finer accounting, up to rounding.
        least = _SAME * max(true, 1e-3)
        below = stated < true - least and stated < finest()[rate] - least
        if below or (case.of_this_version and stated > true + distance):
            raise StatementError(
                f"the statement does not hold: it claims that an attacker with {rate:.1%} false "
                f"alarms succeeds at most {stated:.4%} of the time; {true:.4%} is what is proven"
            )
        if stated > true + distance:
            remark = "holds, and this version proves that an attacker can do less"
        elif not _near(stated, true, _SAME * true):
            remark = remark or _AGREES
    return remark


def _finest_attack(case: _Case) -> dict[float, float]:
    """The powers of the attack at the finest accuracy: a claim above them holds."""
    s = case.claimed
    asked = s.way, s.mechanism, s.delta, s.group, s.accountant
    return dict(attack_of(*asked, _finest(case), _FINEST_ATTACK))


def _attained(case: _Case) -> str | None:
    claimed, now = case.claimed.attained, case.now.attained
    if case.claimed.schema == FROZEN_SCHEMA:
        return "statements of its schema do not say what data sets attain"
    text, most = f"it says that data sets attain {_named(claimed)}", case.now.epsilon.upper
    if claimed is not None and claimed.epsilon > most * (1 + _SAME):
        proven = at_most(most, ".6g")
        raise StatementError(f"the statement does not hold: {text}; at most {proven} is proven")
    if claimed == now:
        return None
    if claimed is not None and now is not None and claimed.data == now.data:
        if _near(claimed.epsilon, now.epsilon, _SAME * now.epsilon):
            return None
        if _near(claimed.epsilon, now.epsilon, _ACCURACY * max(now.epsilon, 1e-8)):
            return _AGREES
    if case.of_this_version:
        raise StatementError(f"of the statement, {text}; of its mechanism {_named(now)} is known")
    return f"this version knows {_named(now)}; how {case.claimed.version} found its own is not kept"


def _named(found: Attained | None) -> str:
    return "nothing" if found is None else f"ε = {at_least(found.epsilon, '.6g')} ({found.data})"


def _caveats(case: _Case) -> str | None:
    s = case.claimed
    wanted = caveats(required(s.mechanism, s.accountant, s.randomness))
    missing = [one for one in wanted if one not in s.caveats]
    # A caveat with one of these codes must be in the statement if and only if it follows.
    of_ways = (one.code for way in ACCOUNTANTS.values() for one in way.caveats)
    found = following(s.mechanism, s.accountant, s.randomness)
    computed = {*found, *of_ways, "presence-not-protected"}
    if missing:
        raise StatementError(
            f"the statement leaves out what it must say ({missing[0].code}): {missing[0].sentence}"
        )
    for one in s.caveats:
        if one.code in computed and one not in wanted:
            raise StatementError(
                f"the statement says what is not so of its mechanism ({one.code}): {one.sentence}"
            )
    choices = of_role(s.caveats, "choice")
    if not choices:
        raise StatementError("the statement does not say how hyperparameters were chosen")
    for one in choices:
        if s.accountant["kind"] not in _OF_ROUNDS.get(one.code, ACCOUNTANTS):
            text = f"the statement says what its accountant does not allow for ({one.code})"
            raise StatementError(f"{text}: {one.sentence}")
    return "that nothing else was left out, and how hyperparameters were chosen, is as declared"


def _unlike(entry: str, stated: object, planned: object) -> StatementError:
    text = f"the statement's {entry} is {stated}"
    return StatementError(f"{text}, that of the plan.json beside it {planned}")


def _accountant(case: _Case) -> str | None:
    s = case.claimed
    fits = suited(s.accountant, s.randomness) == dict(s.accountant)
    seeded = Caveat("seeded-sampling") in s.way.implied(s.mechanism)
    if not fits or (seeded and not s.randomness.seeded_sampling):
        raise StatementError(
            f"the accountant {s.accountant['kind']!r} does not go with the stated randomness"
        )
    if s.way.details and case.others is None:
        return "its details fit ε and each other; that they are those of the run leaves no trace"
    return None


def _randomness(case: _Case) -> str | None:
    grid = case.claimed.randomness.grid
    if case.plan is not None and grid != (case.plan.noise == "grid"):
        raise _unlike("noise", f"{'' if grid else 'not '}on a grid", case.plan.noise)
    return "where the random numbers came from leaves no trace in the statement"


def _mechanism(case: _Case) -> str | None:
    s = case.claimed
    for part in s.mechanism:
        drawn_from = part.sampling.known_examples()
        if None not in (drawn_from, s.examples) and drawn_from != s.examples:
            raise StatementError(
                f"the sampling speaks of {drawn_from} records, the statement of {s.examples}"
            )
    ended = [one for one in s.caveats if one.code in STOPPED]
    named = () if s.evidence is None else s.evidence.files
    in_phases = any(one.code in ("phases-fixed", "phases-by-results") for one in s.caveats)
    if "phases.json" in named and not in_phases:
        raise StatementError("the statement does not say that its run was made in phases")
    if in_phases and case.files is not None and not _PHASES & set(case.files):
        raise StatementError("the statement says that its run was made in phases: no file does")
    if case.plan is None:
        return "no plan.json beside it: that these rounds were the ones that ran"
    planned, count = case.plan.mechanism, len(s.mechanism)
    if s.mechanism.adjacency != planned.adjacency:
        raise _unlike("adjacency (of the mechanism)", s.mechanism.adjacency, planned.adjacency)
    if ended and count != len(planned):
        text = f"results may end the run early: all {len(planned):,} planned rounds count"
        raise StatementError(f"{text}; the statement has {count:,}")
    agreed = [_require_ended(s, one, planned) for one in s.caveats if one.code == ENDED]
    # A search pays for whole trials; else a run may have stopped after some of its rounds.
    least = len(planned) if s.accountant["kind"] in CHOSEN else 1
    if least <= count <= len(planned) and planned.first(count) == s.mechanism:
        # What ran by itself accounts for all of its plan, whatever ended it.
        if count == len(planned) or not s.releases:
            return None
        if _OF_HOLDERS & set(case.files or ()):
            # Neither hash tells how many rounds of the plan its holders agreed on.
            fewest = min(agreed, default=count)
            if fewest == len(planned):
                return None
            return f"that no more than {fewest:,} rounds were agreed on"
        if case.files is None:
            return f"that it was over after {count:,} of {len(planned):,} rounds leaves no trace"
        text = f"the statement accounts for {count:,} of the {len(planned):,} rounds of its plan"
        raise StatementError(f"{text}: alone, a run is accounted with all of them")
    again = any(one.code == "released-again" for one in s.caveats)
    if again and count == len(planned) and _no_more_noise(s.mechanism, planned):
        return None
    if s.accountant["kind"] in CHOSEN and s.accountant["kind"] != SELECTION:
        return "its rounds were chosen by results, and are not those of the plan.json beside it"
    raise StatementError("the statement's mechanism is not that of the plan.json beside it")


def _require_ended(s: Statement, early: Caveat, planned: Mechanism) -> int:
    """The number of rounds that were agreed on, as stated, with their ε computed again.

    Raises:
        StatementError: their ε is another, or the words are.
    """
    try:
        claimed, count = whole_epsilon(early), int(early.detail.split()[4].replace(",", ""))
    except (ValueError, IndexError):
        text = "the statement of an early end must name ε and number of all planned rounds"
        raise StatementError(f"{text}, not {early.detail!r}") from None
    # An agreement may have fewer rounds than the plan, and has more than were released.
    agreed = planned.first(max(count, s.rounds + 1))
    now = ended_early(s.rounds, agreed, s.delta, s.group, s.accountant)
    stated, counted = (one.detail.split(" of all ")[1:] for one in (early, now))
    whole = whole_epsilon(now)
    # Both were rounded up to four digits.
    if stated != counted or not _near(claimed, whole, (_ACCURACY + 1e-3) * whole):
        text = f"the statement says of all planned rounds that they have {early.detail}"
        raise StatementError(f"{text}; by its plan it is {now.detail}")
    return count


def _no_more_noise(stated: Mechanism, planned: Mechanism) -> bool:
    """True if these are the planned rounds, with at most their noise, as after a second release."""
    both = ([(part, part.count) for part in mechanism] for mechanism in (stated, planned))
    return all(
        first.noise_multiplier <= wanted.noise_multiplier * (1 + 1e-12)
        and replace(first, noise_multiplier=wanted.noise_multiplier, count=wanted.count) == wanted
        for _, _, (first, wanted) in stretches(*both)
    )


def _examples(case: _Case) -> str | None:
    s = case.claimed
    if case.plan is not None:
        if s.examples != case.plan.examples:
            raise _unlike("number of records", s.examples, case.plan.examples)
        return None
    if s.examples is not None and all(
        part.sampling.known_examples() is not None for part in s.mechanism
    ):
        return None  # _mechanism compares it with the sampling
    return "no plan.json beside it, and the mechanism does not depend on it"


def _clip_norm(case: _Case) -> str | None:
    if case.plan is None:
        return "no plan.json beside it, and ε does not depend on it"
    if case.claimed.clip_norm != case.plan.clip_norm:
        raise _unlike("clip norm", case.claimed.clip_norm, case.plan.clip_norm)
    return None


def _plan(case: _Case) -> str | None:
    s = case.claimed
    if case.plan is None:
        who = ": that one record is one person is as declared" if of_persons(s) else ""
        return f"no plan.json beside it{who}"
    if s.plan is None:
        raise StatementError("the statement names no plan, but there is a plan.json beside it")
    if s.plan != plan_digest(case.plan.to_dict()):
        raise StatementError("the plan.json beside it is not that of the run: its hash differs")
    earlier = s.schema in UNBOUND_SCHEMAS  # these did not always have the caveat "persons"
    left_out = [
        one
        for one in (caveats(case.plan.not_covered) if earlier else caveats_of(case.plan))
        if one not in s.caveats and (one not in _ANSWERED or s.accountant["kind"] not in CHOSEN)
    ]
    if left_out:
        raise StatementError(f"the statement leaves out what its plan says: {left_out[0]}")
    chosen = choice(case.plan.hyperparameters)
    if chosen not in s.caveats:
        raise _unlike("choice of hyperparameters", repr(s.hyperparameters), repr(str(chosen)))
    unit = getattr(getattr(case.plan, "contribution", None), "kind", None)
    if of_persons(s) and unit != "persons":
        raise StatementError("the statement is for persons, its plan for records")
    # Other trials of a search may keep other numbers of a person's rows.
    found = caveats_of(case.plan)
    tried = {one.code for one in found} if s.accountant["kind"] == SELECTION else ()
    for one in s.caveats:
        told = one.code in _OF_PLAN or (one.role == "choice" and one.code not in _OF_ROUNDS)
        if told and one not in (*found, chosen) and one.code not in tried:
            raise StatementError(
                f"the statement says what its plan does not ({one.code}): {one.sentence}"
            )
    return None


def _releases(case: _Case) -> str | None:
    s = case.claimed
    if not s.releases and case.transcript is None:
        return "none are listed: it is the statement of a plan, or of a bare mechanism"
    if case.transcript is not None and s.releases != case.transcript:
        listed_there = f"the transcript.json beside the statement lists {_counted(case.transcript)}"
        raise StatementError(f"{listed_there}, the statement others: {_counted(s.releases)}")
    wrong = s.unaccounted()
    if wrong is not None:
        raise StatementError(f"the releases are not what is accounted: {wrong}")
    if case.transcript is not None:
        return None
    return "every row is accounted; no transcript.json beside it says that these were all"


def _counted(rows: tuple[StatedRelease, ...]) -> str:
    return f"{sum(row.count for row in rows):,} releases in {len(rows)} rows"


def require_evidence(statement: Statement, present: Mapping[str, str]) -> None:
    """Check that the present files are exactly those that the statement of a run names.

    Args:
        present: name → hash of every present file that a statement may rest on.

    Raises:
        StatementError: a file is missing, has another hash, or is not named in the statement.
    """
    s = statement
    if s.schema in UNBOUND_SCHEMAS:
        return
    named = {} if s.evidence is None else s.evidence.files
    least = ["transcript.json", *(["plan.json"] if s.plan else []), *present] if s.releases else []
    for name in {**named, **dict.fromkeys(least)}:
        if name not in named:
            raise StatementError(
                f"the statement of a run must name the {name} that it rests on, by its hash"
            )
        if name not in present:
            raise StatementError(
                f"the statement rests on a {name} that is not beside it: restore it"
            )
        if named[name] != present[name]:
            raise StatementError(f"the {name} beside the statement is another: its hash differs")


def _evidence(case: _Case) -> str | None:
    s, present = case.claimed, case.files
    if s.schema in UNBOUND_SCHEMAS:
        return "statements of its schema do not name the files that they rest on"
    if not s.releases and s.evidence is None:
        return "it is the statement of a plan, or of a bare mechanism: nothing ran"
    if present is None:
        return "nothing that it rests on lies beside it: verify the folder of the run"
    require_evidence(s, present)
    return None


def _version(case: _Case) -> str | None:
    evidence = case.claimed.evidence
    if evidence is None:
        return "which version made it leaves no trace"
    if evidence.code != code_digest():
        return f"other source code made it than is installed here, which is {__version__}"
    if not case.of_this_version:
        text = f"the statement says that forethought {case.claimed.version} made it"
        raise StatementError(f"{text}, and names the source code of {__version__}")
    return None


def _signature(case: _Case) -> str | None:
    s, signer = case.claimed, case.signer
    if s.signature is not None:
        signing.check(s.signature, s.content())
        signer = signer or SignatureOwner(s.signature.fingerprint, False)
    if signer is None:
        return "not signed"
    if signer.given:
        return None
    if signer.fingerprint is None:
        return "there is a signature, which names no key: check it with a public key"
    return f"fits, by the key {signer.fingerprint}; whose key that is, check with a public key"


def _about(case: _Case) -> str | None:
    about = case.claimed.about
    if about is None:
        return "not stated: which data, what for, who answers for it, which model file"
    if None not in (about.model, case.model) and about.model != case.model:
        raise StatementError("the model file beside the statement is another: its hash differs")
    given = [word.lower() for word, _ in about.lines() if word != "Model file"]
    file = "no model file is named"
    if about.model is not None:
        file = "the model file's hash is that of the file beside it"
        if case.model is None:
            file = "no model file beside it to compare its hash with"
    return f"{file}; {', '.join(given)}: as its owner says" if given else file


def _delta(case: _Case) -> str | None:
    if case.plan is not None and case.claimed.delta > case.plan.delta:
        raise _unlike("δ", *(at_most(one.delta, ".6g") for one in (case.claimed, case.plan)))
    return _as_agreed(case, "δ")


def _group(case: _Case) -> str | None:
    least = 1 if case.plan is None else int(getattr(case.plan, "records_per_person", 1))
    if case.claimed.group < least:
        raise StatementError(
            f"the statement is for {case.claimed.group} records together, the plan.json beside it "
            f"says that one person may have {least}"
        )
    return _as_agreed(case, "group")


def _as_agreed(case: _Case, what: str) -> str | None:
    if not case.claimed.private:
        return f"with no guarantee any {what} is as good as another"
    if case.plan is not None:
        return None
    return "ε is computed for it; no plan.json beside it says that it is the one that was agreed"


def _follows(_case: _Case) -> str | None:
    return None  # the entry was compared with the other entries when the statement was read


# The evidence of entries that follow from other entries.
FOLLOWS = "the other entries"
_FROM_MECHANISM = "mechanism, δ and group"
_FROM_PLAN = "plan.json"
# Entry → the evidence with which it is compared; all others follow from other entries.
_EVIDENCE = {
    **dict.fromkeys(("epsilon", "attained", "attack"), _FROM_MECHANISM),
    **dict.fromkeys(("delta", "group", "examples", "clip_norm", "plan", "mechanism"), _FROM_PLAN),
    "releases": "transcript.json",
    "evidence": "the files beside it",
    "version": "the source code that is installed here",
    "signature": "the public key that was given",
}


def _compared(case: _Case, now: Statement, entry: str, why: str | None) -> ComparedEntry:
    claimed = _shown(case.claimed, entry)
    if why is not None:
        return ComparedEntry(entry, claimed, "", None, why)
    evidence = _EVIDENCE.get(entry, FOLLOWS)
    if entry == "accountant" and case.others is not None:
        evidence = case.others
    if evidence == _FROM_PLAN and case.plan is None:
        evidence = "mechanism"
    recomputed = claimed
    if evidence == _FROM_MECHANISM:
        recomputed = _shown(now, entry)
    elif entry == "delta" and case.plan is not None:
        recomputed = f"at most {at_most(case.plan.delta, '.6g')}"
    elif entry == "group" and case.plan is not None:
        recomputed = f"at least {getattr(case.plan, 'records_per_person', 1)}"
    return ComparedEntry(entry, claimed, recomputed, evidence)


def _shown(statement: Statement, entry: str) -> str:
    """An entry as a text that fits into a column; empty if it is too long."""
    if entry == "epsilon":
        return f"at most {at_most(statement.epsilon.upper, '.6g')}"
    if entry == "attained":
        return _named(statement.attained).partition(" (")[0]
    if entry == "releases":
        return _counted(statement.releases)
    if entry == "accountant":
        return str(statement.accountant["kind"])
    if entry == "mechanism":
        return f"{len(statement.mechanism):,} rounds"
    value = getattr(statement, entry, "")
    value = at_most(value, ".6g") if isinstance(value, float) else value
    return str(value) if isinstance(value, int | str) and len(str(value)) <= 24 else ""


# Each is named after its entry.
_CHECKS: tuple[Callable[[_Case], str | None], ...] = (
    *(_version, _epsilon, _attained, _delta, _group, _examples, _clip_norm, _plan, _mechanism),
    *(_accountant, _randomness, _releases, _attack, _caveats, _about, _evidence, _signature),
)
# Entry → its check. Entries that follow from others were compared when the statement was read.
CHECKS = {
    **dict.fromkeys((*ENTRIES, "checksum", "signature"), _follows),
    **{check.__name__.removeprefix("_"): check for check in _CHECKS},
}
