"""Recompute a statement: every entry that can be, and say which cannot.

Each entry of a statement has one check. A check raises when the entry does not hold, returns None
when it was recomputed, or says why nobody can recompute it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

from forethought import __version__
from forethought.accounting import exact
from forethought.accounting.accountants import ACCOUNTANTS
from forethought.accounting.adaptive import TOLERANCE
from forethought.accounting.attack_bounds import Attack, Attained, attack_of, attained_of, bounded
from forethought.accounting.interval import Interval, at_least, at_most
from forethought.accounting.statement import (
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
    following,
    listed,
    plan_digest,
    registered,
    required,
    suited,
)
from forethought.values import signing
from forethought.values.caveats import Caveat, caveats, choice, of_role
from forethought.values.mechanism import Mechanism, UnsupportedMechanismError

# Ends computed on two machines may take another number of refinements, each good to this.
_ACCURACY = 2e-3
_FINE = 1e-5
_FINEST_ATTACK = 1e-4
# The relative difference that two computations on one machine may have.
_SAME = 1e-9
# Caveats of a plan that the statement of a whole search or run answers.
_ANSWERED = (Caveat("search"), Caveat("chosen-phases"))


@dataclass(frozen=True)
class ComparedEntry:
    """One entry of a statement.

    Args:
        entry: its name. claimed: what the statement says, where that is short.
        recomputed: what came out, where that is a number.
        evidence: what it came from; None: nobody can recompute it. why: then, the reason.
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
        statement: as it comes out now. rows: entry by entry.
    """

    statement: Statement
    rows: tuple[ComparedEntry, ...]

    @property
    def checked(self) -> tuple[str, ...]:
        """Entries that were recomputed and hold."""
        return tuple(row.entry for row in self.rows if row.why is None)

    @property
    def not_checked(self) -> tuple[tuple[str, str], ...]:
        """Pairs (entry, why nobody can recompute it)."""
        return tuple((row.entry, row.why) for row in self.rows if row.why is not None)


@dataclass(frozen=True)
class SignatureOwner:
    """The owner of a signature beside a statement that fits its folder.

    Args:
        fingerprint: of the key; None: no key was tried.
        given: whether that is a public key from elsewhere, and not the one that lies beside.
    """

    fingerprint: str | None
    given: bool


@dataclass(frozen=True)
class _Case:
    """A statement, what its mechanism gives now, and what is beside it."""

    claimed: Statement
    epsilon: Interval
    attack: Attack
    attained: Attained | None
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
        plan: the plan that is said to have been run, if it is at hand.

    Returns:
        The statement as it comes out now.

    Raises:
        StatementError: an entry claims more than can be proven, or belongs to something else.
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
    """Recompute a statement, and say entry by entry what could be recomputed.

    Args:
        plan: the plan that is said to have been run, if it is at hand.
        model: hash of the model file beside it (``sha256:…``).
        transcript: rows of the transcript beside it.
        others: where the accountant's details were compared with what all holders agreed on;
            None: they were not.
        files: name → hash of every file beside it that a statement may rest on; None: the statement
            is alone.
        signer: whose signature beside it fits, where there is one.

    Raises:
        StatementError: an entry claims more than can be proven, or belongs to something else.
    """
    try:
        way = registered(statement.accountant)
        epsilon, attack = bounded(
            way, statement.mechanism, statement.delta, statement.group, statement.accountant
        )
        least = attained_of(way, statement.mechanism, statement.delta, statement.group, epsilon)
        rows = None if transcript is None else listed(transcript)
        case = _Case(statement, epsilon, attack, least, plan, model, rows, others, files, signer)
        found = {name: look(case) for name, look in CHECKS.items()}
    except UnsupportedMechanismError as error:
        raise StatementError(f"no theorem covers the stated mechanism: {error}") from error
    except (StatementError, signing.SignatureError) as error:
        raise StatementError(str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise StatementError(f"the statement does not hold: {error!s}") from error
    now = statement
    stored = least if statement.schema == STATEMENT_SCHEMA else None
    if (epsilon, attack, stored) != (statement.epsilon, statement.attack, statement.attained):
        now = replace(
            statement,
            epsilon=epsilon,
            attack=attack,
            attained=least,
            version=__version__,
            signature=None,
            schema=STATEMENT_SCHEMA,
        )
    return Verification(now, tuple(_compared(case, now, name, why) for name, why in found.items()))


def _epsilon(case: _Case) -> str | None:
    claimed, now = case.claimed.epsilon, case.epsilon
    if claimed.upper < now.upper and claimed.upper < _finest(case):
        raise StatementError(
            f"the statement does not hold: it claims ε in {claimed:.6g} at δ = "
            f"{at_most(case.claimed.delta, '.6g')}; its mechanism has ε in {now:.6g}"
        )
    if claimed.lower > now.upper * (1 + 1e-9):
        raise StatementError(
            f"the statement does not hold: it says that ε is at least "
            f"{at_least(claimed.lower, '.6g')}; its mechanism has at most "
            f"{at_most(now.upper, '.6g')}"
        )
    tolerance = _ACCURACY if case.claimed.way.composed is not None else TOLERANCE
    ends = ((claimed.upper, now.upper), (claimed.lower, now.lower))
    if all(_near(a, b, _SAME * b) for a, b in ends):
        return None
    if all(_near(a, b, tolerance * max(now.upper, 1e-8)) for a, b in ends):
        return (
            f"holds, and agrees with the {now:.6g} found here as far as "
            "two machines do, not to the last digit"
        )
    if case.of_this_version or case.claimed.way.composed is None:
        raise StatementError(
            f"the statement claims ε in {claimed:.6g} where its "
            f"mechanism has {now:.6g}: they are not those it was made for"
        )
    return (
        f"the upper end is a guarantee; this version finds {now:.6g}, and "
        f"what {case.claimed.version} would have found is not known"
    )


def _near(one: float, other: float, distance: float) -> bool:
    return one == other or abs(one - other) <= distance


def _finest(case: _Case) -> float:
    """The least upper end that can be had: a claim between it and the usual one still holds."""
    claimed, compose = case.claimed, case.claimed.way.composed
    if compose is None:
        return case.epsilon.upper / (1 + 1e-9)
    finest = exact.epsilon(
        compose(claimed.mechanism), claimed.delta, claimed.group, accuracy=_FINE
    ).upper
    return min(case.epsilon.upper, finest) / (1 + 1e-9)


def _attack(case: _Case) -> str | None:
    claimed = case.claimed.attack
    if [rate for rate, _ in claimed] != [rate for rate, _ in case.attack]:
        raise StatementError(
            "the statement's table of attacks is not at the false-alarm rates that every "
            f"statement has ({', '.join(f'{rate:g}' for rate, _ in case.attack)}): found "
            f"{', '.join(f'{rate:g}' for rate, _ in claimed) or 'none'}"
        )
    remark = None
    # Found once, and only where a claim is below what is proven.
    finest = cache(partial(_finest_attack, case))
    for (rate, stated), (_, true) in zip(claimed, case.attack, strict=True):
        # The distance to 1 counts as well: 0.999 is not 0.9999.
        distance = 10 * _ACCURACY * min(true, 1 - true) + 1e-9
        # What is below must be proven by finer accounting, to the last digits.
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
            remark = remark or "holds, and agrees as far as two machines do, not to the last digit"
    return remark


def _finest_attack(case: _Case) -> dict[float, float]:
    """The least powers that can be had: a claim between them and the usual ones still holds."""
    s = case.claimed
    asked = s.way, s.mechanism, s.delta, s.group, s.accountant
    return dict(attack_of(*asked, _finest(case), _FINEST_ATTACK))


def _attained(case: _Case) -> str | None:
    claimed, now = case.claimed.attained, case.attained
    if case.claimed.schema == FROZEN_SCHEMA:
        return "statements of its schema do not say what data sets attain"
    if claimed is not None and claimed.epsilon > case.epsilon.upper * (1 + _SAME):
        raise StatementError(
            f"the statement does not hold: it says that data sets attain ε = "
            f"{at_least(claimed.epsilon, '.6g')}; its mechanism has at most "
            f"{at_most(case.epsilon.upper, '.6g')}"
        )
    if claimed == now:
        return None
    if claimed is not None and now is not None and claimed.data == now.data:
        if _near(claimed.epsilon, now.epsilon, _SAME * now.epsilon):
            return None
        if _near(claimed.epsilon, now.epsilon, _ACCURACY * max(now.epsilon, 1e-8)):
            return "holds, and agrees as far as two machines do, not to the last digit"
    if case.of_this_version:
        raise StatementError(
            f"the statement says that data sets attain {_named(claimed)}; of its mechanism "
            f"{_named(now)} is known"
        )
    return f"this version knows {_named(now)}; how {case.claimed.version} found its own is not kept"


def _named(found: Attained | None) -> str:
    return "nothing" if found is None else f"ε = {at_least(found.epsilon, '.6g')} ({found.data})"


def _caveats(case: _Case) -> str | None:
    s = case.claimed
    wanted = caveats(required(s.mechanism, s.accountant, s.randomness))
    missing = [one for one in wanted if one not in s.caveats]
    # They are there if and only if they follow.
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
    if not of_role(s.caveats, "choice"):
        raise StatementError("the statement does not say how hyperparameters were chosen")
    return "that nothing else was left out, and how hyperparameters were chosen, is as declared"


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
        raise StatementError(
            f"the statement says that noise is{'' if grid else ' not'} on a grid, the plan beside "
            f"it says {case.plan.noise!r}"
        )
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
    if case.plan is None:
        return "no plan.json beside it: that these rounds were the ones that ran"
    planned, count = case.plan.mechanism, len(s.mechanism)
    if s.mechanism.adjacency != planned.adjacency:
        raise StatementError(
            f"the mechanism stated is of {s.mechanism.adjacency}, that of the plan.json beside "
            f"it of {planned.adjacency}"
        )
    if ended and count != len(planned):
        raise StatementError(
            f"a run that results may end early is accounted with all {len(planned):,} rounds of "
            f"its plan; the statement has {count:,}"
        )
    # Phases and trials chosen by results are not a prefix of what was planned.
    if s.way.composed is None or (count <= len(planned) and planned.first(count) == s.mechanism):
        return None
    again = any(one.code == "released-again" for one in s.caveats)
    if not (again and count == len(planned) and _no_more_noise(s.mechanism, planned)):
        raise StatementError("the statement's mechanism is not that of the plan.json beside it")
    return None


def _no_more_noise(stated: Mechanism, planned: Mechanism) -> bool:
    """True if these are the planned rounds, perhaps with less noise: some were released again."""
    one, other = [(part, part.count) for part in stated], [(part, part.count) for part in planned]
    while one and other:
        (first, here), (wanted, there) = one.pop(0), other.pop(0)
        if first.noise_multiplier > wanted.noise_multiplier * (1 + 1e-12):
            return False
        if replace(first, noise_multiplier=wanted.noise_multiplier, count=wanted.count) != wanted:
            return False
        if here > there:
            one.insert(0, (first, here - there))
        elif there > here:
            other.insert(0, (wanted, there - here))
    return not (one or other)


def _examples(case: _Case) -> str | None:
    s = case.claimed
    if case.plan is not None:
        if s.examples != case.plan.examples:
            raise StatementError(
                f"the statement is for {s.examples} records, the plan beside it for "
                f"{case.plan.examples}"
            )
        return None
    if s.examples is not None and all(
        part.sampling.known_examples() is not None for part in s.mechanism
    ):
        return None  # compared with the mechanism
    return "no plan.json beside it, and the mechanism does not depend on it"


def _clip_norm(case: _Case) -> str | None:
    if case.plan is None:
        return "no plan.json beside it, and ε does not depend on it"
    if case.claimed.clip_norm != case.plan.clip_norm:
        raise StatementError(
            f"the statement's clip norm is {case.claimed.clip_norm}, that of the plan.json beside "
            f"it {case.plan.clip_norm}"
        )
    return None


def _plan(case: _Case) -> str | None:
    s = case.claimed
    if case.plan is None:
        return "no plan.json beside it"
    if s.plan is None:
        raise StatementError("the statement names no plan, but there is a plan.json beside it")
    if s.plan != plan_digest(case.plan.to_dict()):
        raise StatementError(
            "the plan.json beside the statement is not the plan that was run: its hash differs"
        )
    earlier = s.schema in UNBOUND_SCHEMAS  # did not say of every such plan that it is of persons
    left_out = [
        one
        for one in (caveats(case.plan.not_covered) if earlier else caveats_of(case.plan))
        if one not in s.caveats and (one not in _ANSWERED or s.way.composed is not None)
    ]
    if left_out:
        raise StatementError(f"the statement leaves out what its plan says: {left_out[0]}")
    chosen = choice(case.plan.hyperparameters)
    if chosen not in s.caveats:
        raise StatementError(
            f"the plan beside the statement says of its hyperparameters {str(chosen)!r}, the "
            f"statement {s.hyperparameters!r}"
        )
    return None


def _releases(case: _Case) -> str | None:
    s = case.claimed
    if not s.releases and case.transcript is None:
        return "none are listed: it is the statement of a plan, or of a bare mechanism"
    if case.transcript is not None and s.releases != case.transcript:
        raise StatementError(
            "the releases are not those of the transcript.json beside the statement: it lists "
            f"{_counted(case.transcript)}, the statement {_counted(s.releases)}"
        )
    wrong = s.unaccounted()
    if wrong is not None:
        raise StatementError(f"the releases are not what is accounted: {wrong}")
    if case.transcript is not None:
        return None
    return "every row is accounted; no transcript.json beside it says that these were all"


def _counted(rows: tuple[StatedRelease, ...]) -> str:
    return f"{sum(row.count for row in rows):,} releases in {len(rows)} rows"


def require_evidence(statement: Statement, present: Mapping[str, str]) -> None:
    """Refuse files that are not those that the statement of a run rests on.

    Args:
        present: name → hash of every file that a statement may rest on.

    Raises:
        StatementError: one is missing, another one, or not named.
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
                f"the statement rests on a {name} that is not beside it: restore the file that "
                "the run wrote"
            )
        if named[name] != present[name]:
            raise StatementError(
                f"the {name} beside the statement is not the one that it rests on: its hash differs"
            )


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
        raise StatementError(
            f"the statement says that forethought {case.claimed.version} made it, and names the "
            f"source code of {__version__}"
        )
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
        raise StatementError(
            "the model file beside the statement is not the one that it is about: its hash differs"
        )
    given = [word.lower() for word, _ in about.lines() if word != "Model file"]
    file = "no model file is named"
    if about.model is not None:
        file = "the model file's hash is that of the file beside it"
        if case.model is None:
            file = "no model file beside it to compare its hash with"
    return f"{file}; {', '.join(given)}: as its owner says" if given else file


def _delta(case: _Case) -> str | None:
    if case.plan is not None and case.claimed.delta > case.plan.delta:
        raise StatementError(
            f"the statement's δ is {at_most(case.claimed.delta, '.6g')}, that of the plan.json "
            f"beside it {at_most(case.plan.delta, '.6g')}"
        )
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
    return None  # reading compared it with what follows from the other entries


# The evidence of entries that other entries say as well.
FOLLOWS = "the other entries"
_FROM_MECHANISM = "mechanism, δ and group"
_FROM_PLAN = "plan.json"
# Entry → what it is compared with; all others follow from other entries.
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
    """An entry that fits into a column."""
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


_CHECKS: dict[str, Callable[[_Case], str | None]] = {
    "version": _version,
    "epsilon": _epsilon,
    "attained": _attained,
    "delta": _delta,
    "group": _group,
    "examples": _examples,
    "clip_norm": _clip_norm,
    "plan": _plan,
    "mechanism": _mechanism,
    "accountant": _accountant,
    "randomness": _randomness,
    "releases": _releases,
    "attack": _attack,
    "caveats": _caveats,
    "about": _about,
    "evidence": _evidence,
    "signature": _signature,
}
# Entry → its check. Those that only repeat others were compared when the statement was read.
CHECKS = {name: _CHECKS.get(name, _follows) for name in (*ENTRIES, "checksum", "signature")}
