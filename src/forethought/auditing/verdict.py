"""The findings of an audit and its verdict: plain values, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from forethought.values.serialisation import plain, replaced

CheckName = Literal["replay", "participation", "noise", "sensitivity", "attack"]
SCHEMA = "forethought/audit/1"

NO_GUARANTEE = (
    "An audit refutes or fails to refute. It is no part of the guarantee, which rests on the "
    "theorems that the Statement names. Not looked at: how records are read, what becomes of a "
    "release, and a run's own files, which forethought account --verify compares."
)
FOR_THE_OPERATOR = (
    "The sensitivity check ran the model on the given records without noise: what it measured is "
    "for the operator, not for publication."
)


@dataclass(frozen=True)
class Finding:
    """One measurement of a check.

    Args:
        check: one of the five checks, to which it belongs.
        name: the measured property, in a few words.
        measured, allowed: in words and numbers.
        reason: the sentence for the reader if it refutes.
        p_value: chance of a measurement at least as extreme in a sound run; None for a property
            that holds with certainty in a sound run, where ``violated`` decides.
        violated: True if a property that holds with certainty in a sound run does not hold.
    """

    check: CheckName
    name: str
    measured: str
    allowed: str
    reason: str
    p_value: float | None = None
    violated: bool = False

    def refutes(self, level: float) -> bool:
        """True if this finding alone refutes; a statistical finding is tested at ``level``."""
        return self.violated if self.p_value is None else self.p_value < level


@dataclass(frozen=True)
class AttackPoint:
    """One threshold of the attack: its error rates with simultaneous confidence bands."""

    false_alarms: float
    misses: float
    false_alarms_band: tuple[float, float]
    misses_band: tuple[float, float]


@dataclass(frozen=True)
class AttackSummary:
    """The results of the membership games, beside the claim.

    Args:
        games: number of games. rounds: number of releases that the attacker saw.
        delta: δ at which ε is given.
        claimed_epsilon: certified upper bound of the claim's ε for these rounds.
        epsilon: interval for the ε that this attack shows, from f-DP inference (Nasr et al. 2023);
            its lower end is a lower bound on the mechanism's own ε. None if the distribution of the
            scores is not known, as for losses.
        one_run_epsilon: lower bound by Steinke, Nasr and Jagielski 2023, Theorem 5.2; None if
            each training played one game.
        noise_at_most: the run behaves as if its noise multipliers were at most this multiple of
            the claimed ones; below 1 refutes. Infinite if the attack shows nothing; None if
            ``epsilon`` is None.
        confidence: of each of these bounds.
        points: thresholds, for a figure. curve: pairs (α, f(α)) of the claim, for a figure.
        fdp_epsilon: lower bound from one run, by the claim's trade-off function with scaled noise
            (Mahloujifar, Melis and Chaudhuri 2024); None if it was not computed.
    """

    games: int
    rounds: int
    delta: float
    claimed_epsilon: float
    epsilon: tuple[float, float] | None
    one_run_epsilon: float | None
    noise_at_most: float | None
    confidence: float
    points: tuple[AttackPoint, ...] = ()
    curve: tuple[tuple[float, float], ...] = ()
    fdp_epsilon: float | None = None


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Args:
        findings: of all checks, in the order in which they ran.
        false_alarm: chance that a sound run is refuted, for the whole audit.
        attack: the results of the membership games; None if none were played or wanted.
        seconds: duration of the audit.
        notes: sentences about parts that were left out or scaled down.
    """

    findings: tuple[Finding, ...]
    false_alarm: float
    attack: AttackSummary | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def level(self) -> float:
        """The false-alarm level of each statistical finding (Bonferroni)."""
        return self.false_alarm / max(1, sum(f.p_value is not None for f in self.findings))

    @property
    def refuting(self) -> tuple[Finding, ...]:
        """The findings that refute."""
        return tuple(finding for finding in self.findings if finding.refutes(self.level))

    @property
    def refuted(self) -> bool:
        """True if a finding refutes the claim."""
        return bool(self.refuting)

    @property
    def reason(self) -> str:
        """The main reason of a refutation, in one sentence; empty if there is none.

        Causes come before consequences (noise and participation before the attack that they make
        possible), and within a check violated certainties before improbable measurements.
        """
        order = get_args(CheckName)
        ranked = sorted(
            self.refuting, key=lambda f: (order.index(f.check), f.p_value is not None, f.p_value)
        )
        return ranked[0].reason if ranked else ""

    def to_dict(self) -> dict[str, Any]:
        """The audit as values for JSON: verdict, reason, findings, attack, notes."""
        return {
            "schema": SCHEMA,
            "refuted": self.refuted,
            "reason": self.reason,
            "false_alarm": self.false_alarm,
            "level": self.level,
            "findings": [
                {**plain(finding), "refutes": finding.refutes(self.level)}
                for finding in self.findings
            ],
            "attack": plain(self.attack),
            "seconds": self.seconds,
            "notes": [*self.notes, NO_GUARANTEE],
        }

    def save(self, path: str | Path, plan: str | None = None) -> None:
        """Write the audit as JSON, readable by its owner only, because it uses private records.

        Args:
            plan: hash of the audited plan, as statements name it; None: the file names none.
        """
        named = {} if plan is None else {"plan": plan}
        text = json.dumps({**self.to_dict(), **named}, indent=2, ensure_ascii=False) + "\n"
        with replaced(Path(path), 0o600) as file:
            file.write(text.encode())


def tested(check: CheckName, name: str, allowed: str, reason: str, p_value: float) -> Finding:
    """A statistical finding whose measurement is its p-value."""
    return Finding(check, name, f"p = {p_value:.2g}", allowed, reason, p_value)


def smallest(p_values: Sequence[float]) -> float:
    """One p-value for several tests: the smallest, times their number (Bonferroni)."""
    return min(1.0, len(p_values) * min(p_values)) if p_values else 1.0
