"""The Statement: what was guaranteed, to whom, under which assumptions; anyone can recompute it.

A statement holds the :class:`~forethought.mechanism.Mechanism` itself. :func:`verify` recomputes
every number from it and refuses a statement that does not hold.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from forethought import __version__
from forethought.accounting import exact
from forethought.accounting.adaptive import (
    FILTER,
    SELECTION,
    TOLERANCE,
    filter_interval,
    selection_interval,
)
from forethought.accounting.interval import Interval
from forethought.accounting.tradeoff import tradeoff
from forethought.accounting.wording import ADVERSARY, EXACT, WORDINGS
from forethought.mechanism import Mechanism, UnsupportedMechanismError, real, whole

STATEMENT_SCHEMA = "forethought/statement/1"

# False-positive rates at which the statement bounds an attacker's true-positive rate.
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)

ASSUMPTIONS = (
    "the number of records is public",
    "batches are drawn as stated, and the random choices stay secret",
    "the pseudo-random generators are indistinguishable from true randomness",
    "noise is drawn in floating-point arithmetic, whose deviation from a real Gaussian is not "
    "counted",
)
SEEDED = (
    "the noise generator was seeded by the user: whoever knows the seed can remove the noise, so "
    "the guarantee holds only against those who do not"
)
_PROTECTED = {
    "add-or-remove": "whether any one record is present in the training data at all (with a group, "
    "whether all of its records are present or none)",
    "zero-out": "any one record, against the same data with that record blanked out",
    "replace-one": "any one record, against the same data with that record replaced by any other",
}


class Accounted(Protocol):
    """What :func:`account` reads of a plan; `forethought.plans.Plan` has it."""

    @property
    def mechanism(self) -> Mechanism: ...
    @property
    def examples(self) -> int: ...
    @property
    def delta(self) -> float: ...
    @property
    def hyperparameters(self) -> str: ...
    @property
    def not_covered(self) -> tuple[str, ...]: ...


class StatementError(ValueError):
    """A statement that cannot be read, or that does not hold."""


@dataclass(frozen=True)
class Statement:
    """A guarantee with everything that is needed to recompute it.

    Args:
        mechanism: what was released.
        delta: the δ at which ε is given.
        epsilon: certified interval; the upper end is the guarantee.
        group: how many records of one person are protected together.
        attack: pairs (false-positive rate, highest true-positive rate any attacker can reach).
        accountant: how ε was computed: ``{"kind": "exact"}``, or another registered kind with
            what it needs.
        examples: number of records, if known.
        hyperparameters: how the plan's numbers were chosen.
        assumptions: what the guarantee rests on. not_covered: uses of private data outside it.
        adversary: what the attacker is assumed to see and know.
        theorems: the results that the accounting rests on.
        version: the library's version.
    """

    mechanism: Mechanism
    delta: float
    epsilon: Interval
    group: int
    attack: tuple[tuple[float, float], ...]
    accountant: Mapping[str, Any] = field(default_factory=lambda: {"kind": EXACT})
    examples: int | None = None
    hyperparameters: str = "not stated"
    assumptions: tuple[str, ...] = ASSUMPTIONS
    not_covered: tuple[str, ...] = ()
    adversary: str = ADVERSARY
    theorems: tuple[str, ...] = ()
    version: str = __version__

    @property
    def private(self) -> bool:
        """Whether there is a finite guarantee at all."""
        return math.isfinite(self.epsilon.upper)

    def sentences(self) -> tuple[str, str, str]:
        """The guarantee in three plain sentences: what, what it means, what it does not cover."""
        who = "one record" if self.group == 1 else f"any {self.group} records together"
        if not self.private:
            return (
                "No noise was added: this model is not differentially private.",
                "An attacker who sees it may learn anything about any record.",
                "Train with a budget or a noise multiplier to get a guarantee.",
            )
        first = (
            f"This model is ({self.epsilon.upper:.4g}, {self.delta:.3g})-differentially private "
            f"for {who} ({self.mechanism.adjacency}), proven for "
            f"{WORDINGS[self.accountant['kind']].covered}."
        )
        rate, power = self.attack[min(1, len(self.attack) - 1)]
        second = (
            f"An attacker who wants to tell whether {who} was used and accepts {rate:.1%} false "
            f"alarms succeeds at most {power:.1%} of the time, whatever else they know."
        )
        count = len(self.not_covered)
        third = f"It rests on {len(self.assumptions)} stated assumptions" + (
            f" and does not cover {count} named {'use' if count == 1 else 'uses'} of the "
            "data: read them in statement.md."
            if count
            else ", listed in statement.md, and names no use of the data outside it."
        )
        return first, second, third

    def content(self) -> dict[str, Any]:
        """Everything but the checksum, JSON-ready."""
        return {
            "schema": STATEMENT_SCHEMA,
            "version": self.version,
            "epsilon": {
                "lower": _number(self.epsilon.lower),
                "upper": _number(self.epsilon.upper),
            },
            "delta": self.delta,
            "group": self.group,
            "adjacency": self.mechanism.adjacency,
            "rounds": len(self.mechanism),
            "examples": self.examples,
            "mechanism": self.mechanism.to_dict(),
            "accountant": dict(self.accountant),
            "attack": [
                {"false_positive_rate": rate, "true_positive_rate": power}
                for rate, power in self.attack
            ],
            "adversary": self.adversary,
            "hyperparameters": self.hyperparameters,
            "assumptions": list(self.assumptions),
            "not_covered": list(self.not_covered),
            "theorems": list(self.theorems),
        }

    def to_json(self) -> str:
        """The statement with a checksum that notices careless edits, as one JSON object."""
        content = self.content()
        return json.dumps({**content, "checksum": _checksum(content)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Statement:
        """The inverse of :meth:`to_json`.

        Raises:
            StatementError: not a statement, another schema version, or edited by hand.
        """
        try:
            values = json.loads(text)
            if not isinstance(values, dict) or values.get("schema") != STATEMENT_SCHEMA:
                found = values.get("schema") if isinstance(values, dict) else type(values).__name__
                raise StatementError(
                    f"not a statement this version can read: schema {found!r}, expected "
                    f"{STATEMENT_SCHEMA!r}"
                )
            mechanism = Mechanism.from_dict(values["mechanism"])
            _kind(values["accountant"])
            statement = cls(
                mechanism=mechanism,
                delta=real("delta", values["delta"], above=0, below=1),
                epsilon=Interval(
                    _parse(values["epsilon"]["lower"]), _parse(values["epsilon"]["upper"])
                ),
                group=whole("group", values["group"]),
                attack=tuple(
                    (
                        real("false_positive_rate", row["false_positive_rate"], least=0, most=1),
                        real("true_positive_rate", row["true_positive_rate"], least=0, most=1),
                    )
                    for row in values["attack"]
                ),
                accountant=dict(values["accountant"]),
                examples=values["examples"],
                hyperparameters=values["hyperparameters"],
                assumptions=tuple(values["assumptions"]),
                not_covered=tuple(values["not_covered"]),
                adversary=values["adversary"],
                theorems=tuple(values["theorems"]),
                version=values["version"],
            )
        except StatementError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StatementError(f"not a statement: {error!s}") from error
        checksum = values.pop("checksum", None)
        # A mechanism of an older version says the same in other words: it is compared as read.
        present = {**values, "mechanism": mechanism.to_dict()}
        if present != statement.content() or checksum != _checksum(values):
            raise StatementError(
                "the statement was edited after it was made: its checksum or its repeated "
                "entries (adjacency, rounds) do not match its content"
            )
        return statement

    @classmethod
    def load(cls, path: str | Path) -> Statement:
        """Read a statement.json.

        Raises:
            OSError: no such file. StatementError: not a statement; the message names the file.
        """
        text = Path(path).read_text(encoding="utf-8")
        try:
            return cls.from_json(text)
        except StatementError as error:
            raise StatementError(f"{path}: {error}") from error

    def to_markdown(self) -> str:
        """The statement for a data-protection officer."""
        return _markdown(self)

    def save(self, folder: str | Path) -> None:
        """Write ``statement.json`` and ``statement.md`` into ``folder``."""
        folder = Path(folder)
        (folder / "statement.json").write_text(self.to_json() + "\n", encoding="utf-8")
        (folder / "statement.md").write_text(self.to_markdown(), encoding="utf-8")


def account(
    plan_or_mechanism: Accounted | Mechanism,
    delta: float | None = None,
    *,
    group: int = 1,
    released: int | None = None,
    seeded: bool = False,
    not_covered: tuple[str, ...] = (),
    accountant: Mapping[str, Any] | None = None,
) -> Statement:
    """The guarantee of a plan or a mechanism.

    Args:
        plan_or_mechanism: a Plan (its own δ is the default) or a Mechanism (δ is required).
        delta: in (0, 1).
        group: how many records are protected together.
        released: account only for the first so many rounds, as for a run that stopped early.
        seeded: the noise came from a generator that the user seeded; the statement says so.
        not_covered: uses of private data outside the mechanism, besides those of the plan.
        accountant: a kind of :data:`ACCOUNTANTS` with what it needs. Default: the exact one, for
            rounds that were fixed before the run.

    Returns:
        A Statement with the accountant's certified interval.

    Raises:
        UnsupportedMechanismError: no theorem covers the mechanism.
        ValueError, TypeError: an argument outside its range.
    """
    examples: int | None = None
    hyperparameters = "not stated"
    if isinstance(plan_or_mechanism, Mechanism):
        mechanism = plan_or_mechanism
        if delta is None:
            raise ValueError("a bare mechanism needs delta=, for example 1e-5")
    else:
        mechanism = plan_or_mechanism.mechanism
        delta = plan_or_mechanism.delta if delta is None else delta
        examples = plan_or_mechanism.examples
        hyperparameters = plan_or_mechanism.hyperparameters
        not_covered = (*plan_or_mechanism.not_covered, *not_covered)
    if released is not None:
        mechanism = mechanism.first(released)
    delta = real("delta", delta, above=0, below=1)
    group = whole("group", group)
    accountant = {"kind": EXACT} if accountant is None else dict(accountant)
    epsilon, attack = _recompute(mechanism, delta, group, accountant)
    words = WORDINGS[accountant["kind"]]
    return Statement(
        mechanism=mechanism,
        delta=delta,
        epsilon=epsilon,
        group=group,
        attack=attack,
        accountant=accountant,
        examples=examples,
        hyperparameters=hyperparameters,
        assumptions=(*ASSUMPTIONS, SEEDED) if seeded else ASSUMPTIONS,
        not_covered=tuple(not_covered),
        adversary=words.adversary,
        theorems=words.theorems(mechanism, group),
    )


def verify(statement: Statement) -> Statement:
    """Recompute a statement from the mechanism inside it.

    Returns:
        The statement as it comes out now.

    Raises:
        StatementError: ε, the attack bounds or the adjacency claim more than can be proven, or
            belong to another mechanism.
    """
    try:
        epsilon, attack = _recompute(
            statement.mechanism, statement.delta, statement.group, statement.accountant
        )
    except UnsupportedMechanismError as error:
        raise StatementError(f"no theorem covers the stated mechanism: {error}") from error
    except StatementError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise StatementError(f"the statement does not hold: {error!s}") from error
    claimed = statement.epsilon
    slack = 1 + 1e-9
    if claimed.upper * slack < epsilon.upper or claimed.lower > epsilon.upper * slack:
        raise StatementError(
            f"the statement does not hold: it claims ε in [{claimed.lower:.6g}, "
            f"{claimed.upper:.6g}] at δ = {statement.delta:g}; its mechanism has ε in "
            f"[{epsilon.lower:.6g}, {epsilon.upper:.6g}]"
        )
    # Outside the exact accountant the interval is wide: another mechanism's may overlap it.
    if statement.accountant["kind"] != EXACT and claimed.upper > epsilon.upper * (1 + TOLERANCE):
        raise StatementError(
            f"the statement claims ε = {claimed.upper:.6g} where its mechanism and trials have "
            f"{epsilon.upper:.6g}: they are not those it was made for"
        )
    for (rate, stated), (_, true) in zip(statement.attack, attack, strict=False):
        if stated + 1e-9 < true:
            raise StatementError(
                f"the statement does not hold: it claims that an attacker with {rate:.1%} false "
                f"alarms succeeds at most {stated:.4%} of the time; {true:.4%} is what is proven"
            )
    return replace(statement, epsilon=epsilon, attack=attack, version=__version__)


Recompute = Callable[[Mechanism, float, int, Mapping[str, Any]], Interval]
# How ε is recomputed, by the accountant's kind. Rooms that account in another way register here.
ACCOUNTANTS: dict[str, Recompute] = {
    EXACT: lambda mechanism, delta, group, _details: exact.epsilon(mechanism, delta, group),
    SELECTION: selection_interval,
    FILTER: filter_interval,
}


def _kind(accountant: Mapping[str, Any]) -> str:
    kind = accountant.get("kind")
    if kind not in ACCOUNTANTS:
        raise StatementError(
            f"unknown accountant {kind!r}; this version knows {', '.join(ACCOUNTANTS)}"
        )
    return str(kind)


def _recompute(
    mechanism: Mechanism, delta: float, group: int, accountant: Mapping[str, Any]
) -> tuple[Interval, tuple[tuple[float, float], ...]]:
    kind = _kind(accountant)
    epsilon = ACCOUNTANTS[kind](mechanism, delta, group, accountant)
    rows = _attack(epsilon.upper, delta)
    if kind == "exact" and math.isfinite(epsilon.upper):
        # The whole trade-off function says more than one point of it.
        misses = tradeoff(mechanism, group)
        rows = tuple((rate, min(power, 1 - misses(rate))) for rate, power in rows)
    return epsilon, rows


def _attack(epsilon: float, delta: float) -> tuple[tuple[float, float], ...]:
    # (ε, δ) bounds every test's power: TPR ≤ e^ε FPR + δ and, with the roles exchanged,
    # 1 − FPR ≤ e^ε (1 − TPR) + δ  (Kairouz, Oh, Viswanath 2015, Theorem 2.1).
    rows = []
    for rate in FALSE_POSITIVE_RATES:
        grown = math.exp(min(epsilon, 700.0))
        power = min(grown * rate + delta, 1 - (1 - rate - delta) / grown, 1.0)
        rows.append((rate, max(power, 0.0)))
    return tuple(rows)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "infinity"  # JSON has no infinity


def _parse(value: object) -> float:
    return math.inf if value == "infinity" else real("epsilon", value, least=0)


def _checksum(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def json_schema() -> dict[str, Any]:
    """The published JSON schema of ``statement.json``."""
    text = resources.files("forethought.accounting").joinpath("statement.schema.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema


def _markdown(statement: Statement) -> str:
    s = statement
    words = WORDINGS[_kind(s.accountant)]
    lines = ["# Privacy statement", ""]
    lines += [" ".join(s.sentences()), ""]
    records = "one record" if s.group == 1 else f"any {s.group} records together"
    lines += [
        "## What is protected, and against whom",
        "",
        f"- Protected: {_PROTECTED[s.mechanism.adjacency]}"
        + ("" if s.group == 1 else f", for {records}")
        + ". If one person contributes more records, ask for the statement for a group of that "
        "size.",
        f"- The attacker {s.adversary}.",
        "",
        "## The numbers",
        "",
        "| quantity | value |",
        "| --- | --- |",
        f"| ε (upper end: the guarantee) | {s.epsilon.upper:.6g} |",
        f"| ε (lower end: how tightly it is computed) | {s.epsilon.lower:.6g} |",
        f"| δ | {s.delta:g} |",
        f"| adjacency | {s.mechanism.adjacency} |",
        f"| records protected together | {s.group} |",
        f"| records in the data | {'not stated' if s.examples is None else f'{s.examples:,}'} |",
        f"| {words.rounds} | {len(s.mechanism):,} |",
        f"| accountant | {s.accountant['kind']}, forethought {s.version} |",
        "",
        "## What they mean",
        "",
        "δ should be well below one over the number of records. Whatever test an attacker uses to "
        f"tell whether {records} was used, this is the best they can do:",
        "",
        "| false alarms accepted | detections, at most |",
        "| --- | --- |",
        *(f"| {rate:.1%} | {power:.2%} |" for rate, power in s.attack),
        "",
        "Guessing blindly gives as many detections as false alarms.",
        "",
        "## What was done",
        "",
        "| rounds | noise multiplier | sampling | clipped contribution |",
        "| --- | --- | --- | --- |",
    ]
    shown = s.mechanism.rounds[:20]
    lines += [
        f"| {part.count:,} | {part.noise_multiplier:.6g} | {part.sampling} | {part.clipping} |"
        for part in shown
    ]
    if len(s.mechanism.rounds) > len(shown):
        lines.append(f"| … {len(s.mechanism.rounds) - len(shown)} more parts | | | |")
    lines += [""]
    lines += [f"{text}." for text in words.done(s.accountant)]
    lines += [f"Hyperparameters: {s.hyperparameters}.", ""]
    lines += ["## What it rests on", "", *(f"- {text}." for text in s.assumptions)]
    lines += [f"- Theorem: {text}" for text in s.theorems]
    lines += ["", "## What is not covered", ""]
    lines += [f"- {text}." for text in s.not_covered] or ["- Nothing was named."]
    lines += [
        "",
        "## Check it yourself",
        "",
        "`forethought account --verify statement.json` recomputes every number from the "
        "mechanism in that file.",
        "",
    ]
    return "\n".join(lines)
