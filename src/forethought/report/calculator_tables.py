"""What the closed-form calculators found, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from forethought.accounting.interval import at_most
from forethought.published.calculators_exact import Calculated
from forethought.published.closed_form import SampleSizes


def show(console: Console, plans: Sequence[Calculated]) -> None:
    """Print each plan, its conditions with their margins, and what the accountant says of it."""
    for plan in plans:
        result = plan.result
        facts = Table(
            title=f"{plan.calculator}: {plan.what}",
            title_justify="left",
            title_style="bold",
            show_header=False,
        )
        facts.add_column(style="cyan", no_wrap=True)
        facts.add_column(no_wrap=True)
        facts.add_row("sample size s", sizes_text(result.sizes))
        facts.add_row("rounds T", f"{result.sizes.total_rounds:,}")
        facts.add_row("gradients K", f"{result.sizes.gradients:,.0f}")
        facts.add_row(
            "ε, δ of the formula", f"{at_most(result.epsilon, '.5g')}, {at_most(result.delta)}"
        )
        facts.add_row("σ of the formula", f"{result.sigma:.5g}")
        facts.add_row("ε, exact at this σ", at_most(result.exact.upper, ".5g"))
        needed = plan.exact_noise_multiplier
        facts.add_row(
            "σ, exact for this ε",
            f"{needed:.5g}  ({plan.less_noise:.2f} times "
            f"{'less' if plan.less_noise >= 1 else 'the'} noise)",
        )
        console.print(facts)
        conditions = Table(title=f"Conditions of {result.theorem}", title_justify="left")
        for name in ("condition", "left", "right", "margin", ""):
            conditions.add_column(name, justify="left" if name in ("condition", "") else "right")
        for condition in result.conditions:
            conditions.add_row(
                condition.name,
                f"{condition.left:.5g}",
                f"{condition.right:.5g}",
                f"{condition.margin:.3g}",
                "holds" if condition.holds else "[red]fails[/red]",
            )
        console.print(conditions)
        if not result.holds:
            console.print(
                f"{result.theorem} does not prove this ε; the exact figures stand all the same."
            )
    if plans and len(plans[0].result.sizes.sizes) > 1 and "phase" in plans[0].what:
        console.print(
            "Whether to go on is decided by looking at results: these totals hold for phases "
            "fixed in advance. For the total of phases chosen on the way use a Rényi filter."
        )


def sizes_text(sizes: SampleSizes) -> str:
    """Sample sizes in a few words."""
    values = sizes.sizes
    if len(values) == 1:
        return f"{values[0]:.4g}"
    if len(values) <= 3:
        return ", then ".join(f"{size:.4g} for {count:,} rounds" for size, count in sizes)
    return f"{values[0]:.4g} to {values[-1]:.4g} in {len(values)} steps, θ = {sizes.theta:.3f}"
