"""What an account charges for plans that are chosen one after another, against exact composition.

Sets of plans, each made for an ε of its own at δ = 1e-6. Exact composition is what they would cost
had all been declared together; a rule's total is what an account says when each was chosen after
looking at the earlier ones' results.

    python experiments/ledger/run.py --full    # results.csv, results.md; goes on where it stopped
    python experiments/ledger/run.py           # the first set only; nothing is written
    python experiments/ledger/run.py --table   # results.md from results.csv
"""

from __future__ import annotations

import argparse
import csv
import math
import random
from pathlib import Path

from forethought.accounting import exact
from forethought.accounting.dominating_pair import gaussian_mu
from forethought.accounting.exact import noise_multiplier
from forethought.ledger.book import Charge
from forethought.ledger.totals import (
    WHOLE,
    Clock,
    ClockRule,
    GaussianRule,
    RenyiRule,
    TotalRule,
    smallest,
)
from forethought.values.mechanism import (
    Budget,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Sampling,
    WithoutReplacement,
)

HERE = Path(__file__).parent
RESULTS, TABLE = HERE / "results.csv", HERE / "results.md"
FIELDS = ("set", "plans", "account", "rule", "epsilon", "share", "over")
DELTA = 1e-6
TOGETHER = "clock, declared together"
# Sampling, rounds, ε alone.
KINDS: tuple[tuple[Sampling, int, float], ...] = (
    (Poisson(0.01), 1000, 1.0),
    (Poisson(0.02), 500, 1.0),
    (Poisson(0.05), 400, 1.5),
    (Poisson(0.1), 200, 1.0),
    (Poisson(0.005), 3000, 1.0),
    (FullBatch(), 100, 1.0),
    (Poisson(0.002), 5000, 0.8),
    (Poisson(0.03), 1000, 2.0),
    (Poisson(0.01), 200, 0.5),
    (Poisson(0.25), 100, 1.5),
    (FullBatch(), 1, 0.5),
    (Poisson(0.015), 2500, 1.5),
    (Poisson(0.08), 120, 0.7),
    (Poisson(0.004), 800, 0.6),
    (Poisson(0.06), 300, 1.2),
    (WithoutReplacement(100, 10_000), 1000, 1.0),
    (RandomAllocation(50), 500, 1.0),
    (CyclicPoisson(0.5, 10), 200, 1.0),
    (Poisson(0.02), 4000, 2.0),
    (FullBatch(), 20, 0.8),
)


def made(sampling: Sampling, rounds: int, epsilon: float) -> Mechanism:
    """A plan's mechanism for an ε of its own."""
    noise = noise_multiplier(Budget(epsilon, DELTA), sampling, rounds)
    return Mechanism(Rounds(noise, rounds, sampling))


def drawn(
    seed: int, count: int, epsilons: tuple[float, float], epochs: tuple[float, float]
) -> list[Mechanism]:
    """Plans of DP-SGD with Poisson rates from 0.002 to 0.1, all evenly in the logarithm."""
    source = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(source.uniform(math.log(low), math.log(high)))

    plans = []
    for _ in range(count):
        rate = between(0.002, 0.1)
        plans.append(made(Poisson(rate), math.ceil(between(*epochs) / rate), between(*epsilons)))
    return plans


SETS = {
    "20 of different kinds": lambda: [made(*kind) for kind in KINDS],
    "20 of DP-SGD, 5 to 50 epochs": lambda: drawn(1, 20, (0.4, 2.0), (5, 50)),
    "60 of DP-SGD, ε 0.1 to 0.5": lambda: drawn(2, 60, (0.1, 0.5), (5, 50)),
    "20 of DP-SGD, 1 to 2 epochs": lambda: drawn(3, 20, (0.4, 2.0), (1, 2)),
    "20 full batches": lambda: [made(FullBatch(), 50, 0.3 + 0.1 * at) for at in range(20)],
}


def leaping(budget: Budget) -> Clock:
    """The clock of approximate Gaussian privacy: Σμ², and a chance that everything is disclosed."""
    leaps = 0.03 * budget.delta

    def exceeds(variance: float) -> bool:
        return Clock(variance, (), leaps).above(1.0, budget.epsilon) > budget.delta

    most = gaussian_mu(budget.epsilon, budget.delta) ** 2
    return Clock(smallest(exceeds, 0.0, most) * (1 - 1e-9), (), leaps)


def rules(budget: Budget) -> dict[str, TotalRule]:
    """The rules of one account."""
    return {
        "clock": ClockRule(budget),
        "clock, four blocks a run": ClockRule(budget, blocks=4),
        "clock without steps": ClockRule(budget, clock=leaping(budget)),
        "Rényi, one order": RenyiRule(budget),
        "Gaussian": GaussianRule(budget),
    }


def rows_of(name: str, plans: list[Mechanism], done: set[str]) -> list[dict[str, str]]:
    """A set's totals: exact, by each rule, and the sum of the plans' own ε.

    Args:
        done: rules that are left out.
    """
    whole = plans[0]
    for plan in plans[1:]:
        whole = whole + plan
    together = exact.epsilon(whole, DELTA).upper
    # The smallest account, in halves of ε, that has 2 % of room.
    budget = Budget(math.ceil(together * 1.02 * 2) / 2, DELTA)
    found = [(("exact composition"), together, 0.0)]
    chosen = {rule: [Charge(plan) for plan in plans] for rule in rules(budget)}
    # A series that is fixed beforehand is one charge.
    for rule_name, charges in {**chosen, TOGETHER: [Charge(whole)]}.items():
        if rule_name not in done:
            rule = rules(budget).get(rule_name, ClockRule(budget))
            cost = sum(rule.costs(charge)[0] for charge in charges)
            found.append((rule_name, rule.epsilon((cost,)), cost / WHOLE))
    alone = sum(exact.epsilon(plan, DELTA).upper for plan in plans)
    found.append(("sum of ε (at 20 or 60 times δ)", alone, 0.0))
    return [
        {
            "set": name,
            "plans": str(len(plans)),
            "account": f"{budget.epsilon:g}",
            "rule": rule_name,
            "epsilon": f"{epsilon:.4f}",
            "share": f"{share:.4f}" if share else "",
            "over": f"{epsilon / together - 1:.4f}",
        }
        for rule_name, epsilon, share in found
        if rule_name not in done
    ]


def kept() -> list[dict[str, str]]:
    """The rows of earlier calls."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def keep(rows: list[dict[str, str]]) -> None:
    """Write the rows of all sets so far."""
    with RESULTS.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def table() -> str:
    """results.csv in words and columns."""
    rows = kept()
    lines = [
        f"# Totals of adaptively chosen plans, δ = {DELTA:g}",
        "",
        "| plans | account's ε | total by | ε | over exact | share of the account |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        over = float(row["over"])
        epsilon = "does not fit" if math.isinf(over) else f"{float(row['epsilon']):.3f}"
        more = "" if row["rule"].startswith("exact") or math.isinf(over) else f"{100 * over:.2f} %"
        share = f"{float(row['share']):.3f}" if row["share"] else ""
        lines.append(
            f"| {row['set']} | {row['account']} | {row['rule']} | {epsilon} | {more} | {share} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all sets; writes the results")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    asked = parser.parse_args()
    if not asked.table:
        rows = kept() if asked.full else []
        for name, make in list(SETS.items())[: None if asked.full else 1]:
            done = {row["rule"] for row in rows if row["set"] == name}
            if TOGETHER in done:
                continue
            last = max((at for at, row in enumerate(rows, 1) if row["set"] == name), default=None)
            place = len(rows) if last is None else last
            rows[place:place] = rows_of(name, make(), done)
            if asked.full:
                keep(rows)
        if not asked.full:
            print(*(", ".join(map(str, row.values())) for row in rows), sep="\n")
            return
    TABLE.write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
