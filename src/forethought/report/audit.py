"""Output of an audit: a table, a figure and the verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forethought.accounting.interval import at_least, at_most
from forethought.auditing.verdict import NO_GUARANTEE, Audit
from forethought.report.figures import BLUE, GREEN, ORANGE, errors_axes, saved
from forethought.report.terminal import BOLD, figures

if TYPE_CHECKING:
    from forethought.auditing.audit import SelfTest


def show_audit(console: Console, audit: Audit) -> None:
    """Print every finding, the attack in numbers, and the verdict."""
    table = Table(title="Audit", **BOLD)
    for name in ("check", "what", "measured", "allowed"):
        table.add_column(name, style="cyan" if name == "check" else None)
    table.add_column("verdict", no_wrap=True)
    before = ""
    for finding in audit.findings:
        refutes = finding.refutes(audit.level)
        verdict = "[bold red]refuted[/bold red]" if refutes else "[green]not refuted[/green]"
        first = finding.check if finding.check != before else ""
        before = finding.check
        # As texts: a layer's name or a folder's may have brackets, which are no markup.
        table.add_row(*map(Text, (first, finding.name, finding.measured, finding.allowed)), verdict)
    console.print(table)
    attack = audit.attack
    if attack is not None:
        confidence = f"{100 * attack.confidence:.0f} %"
        bound, fdp = attack.one_run_epsilon, attack.fdp_epsilon
        claimed = f"{at_most(attack.claimed_epsilon)} at δ = {at_most(attack.delta, '.2g')}"
        if fdp is not None:
            console.print(
                f"[bold]A strong attack on one run reaches ε ≥ {at_least(fdp, '.3g')} "
                f"({confidence}), the claim for one record says ≤ {claimed}.[/bold]"
            )
        if attack.epsilon is not None and attack.noise_at_most is not None:
            noise = "∞" if math.isinf(attack.noise_at_most) else f"{attack.noise_at_most:.3g}"
            one_run = "" if bound is None else f"one-run bound {at_least(bound, '.3g')}; "
            console.print(
                f"Attack: {attack.games:,} membership games over {attack.rounds:,} rounds show ε "
                f"of at least {at_least(attack.epsilon[0], '.3g')} ({one_run}{confidence} "
                f"confidence), as if noise were at most {noise} times what is claimed. Claimed for "
                f"these rounds: {claimed}."
            )
        elif bound is not None:
            console.print(
                f"Attack: {attack.games:,} canaries; by ε and δ alone, without the curve, "
                f"ε ≥ {at_least(bound, '.3g')}."
            )
    for note in audit.notes:
        console.print(f"Note: {note[:1].upper()}{note[1:].rstrip('.')}.", markup=False)
    verdict, style = ("Refuted.", "bold red") if audit.refuted else ("Not refuted.", "bold")
    reason = audit.reason or "Nothing that was looked at contradicts the claim."
    console.print(Text.assemble("\n", (verdict, style), f" {reason}"))
    chance = "Nothing of this is a matter of chance."
    if audit.false_alarm:
        chance = f"A sound run is refuted with a chance of at most {audit.false_alarm:.0e}."
    console.print(f"{chance} {NO_GUARANTEE}")


def show_self_test(console: Console, result: SelfTest) -> None:
    """Print the checks that caught each planted fault, and the sound jobs that were refuted."""
    columns = {
        "fault": "{0.name}",
        "caught by": lambda one: ", ".join(one.checks) or "[bold red]not caught[/bold red]",
        "seconds": "{0.seconds:.1f}",
    }
    options = {"first": {"style": "cyan"}, "title": "Planted faults", **BOLD}
    console.print(figures(result.faults, columns, right=("seconds",), **options))
    found = sum(outcome.caught for outcome in result.faults)
    refuted = [outcome for outcome in result.sound if outcome.caught]
    console.print(f"{found} of {len(result.faults)} planted faults caught.")
    console.print(f"{len(refuted)} of {len(result.sound)} sound jobs refuted.")
    for outcome in refuted:
        console.print(f"  {outcome.name}: {outcome.reason}", markup=False)


def draw_audit(audit: Audit, path: Path) -> Path | None:
    """Draw the attack's error rates and the claimed trade-off curve; None: there was no attack."""
    attack = audit.attack
    if attack is None:
        return None
    verdict = "refuted" if audit.refuted else "not refuted"
    figure, axes = errors_axes(f"Attack against claim: {verdict}")
    alpha, claim = np.array(attack.curve).T
    axes.plot(alpha, claim, color=GREEN, linewidth=1.8, label="claim: no attack gets below")
    axes.fill_between(alpha, 0, claim, color=ORANGE, alpha=0.10, linewidth=0)
    false, missed = np.array([(p.false_alarms, p.misses) for p in attack.points]).T
    bands = np.array([(p.false_alarms_band, p.misses_band) for p in attack.points])
    across, down = bands.transpose(1, 2, 0)
    axes.errorbar(
        false,
        missed,
        xerr=np.abs(across - false),
        yerr=np.abs(down - missed),
        fmt="o",
        markersize=3,
        linewidth=0.9,
        color=BLUE,
        label=f"{attack.games:,} games, {100 * attack.confidence:.0f} % bands",
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.annotate("a band wholly in here refutes", (0.02, 0.02), color=ORANGE, fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    return saved(figure, path)
