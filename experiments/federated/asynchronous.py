"""Five holders training asynchronously, as in van Dijk et al., "Proactive DP", Section 4 and D.3.

    python experiments/federated/asynchronous.py --data ../shared/data           # some ten minutes
    python experiments/federated/asynchronous.py --data ../shared/data --seeds 5

Phishing data of the LIBSVM collection, logistic regression, N = 10,000 records at each of five
holders (the same ones: the paper's are five sets of that size), K = 50,000 gradients a holder,
C = 0.1, η₀ = 0.1 for the sum of a holder's gradients, δ = 1e-4, 1-asynchronous rounds; holders
straggle lognormally (σ = 0.5). Constant samples s = 26, and samples that grow with the round, as
the paper recommends, from 26 by 26 every 100 rounds: K in a quarter of the messages. At the
published σ of the constant case, and at the least exact one. Steps fall as η₀/(1 + βt), t in
rounds. The regulariser λ = 1/N of the strongly convex problem is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
import torch

import forethought as ft
from forethought.federated.federation import Federation, Member
from forethought.holders.simulator import StarSimulator, Times
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.workers import InProcess
from forethought.models import build
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.use import Optimizer, Schedule

sys.path.insert(0, str(Path(__file__).parents[1] / "proactive_dp"))
from logistic_regression import EXAMPLES, logistic, problems

HOLDERS, GRADIENTS, DELTA, SAMPLE, ETA, DECAY = 5, 50_000, 1e-4, 26, 0.1, 0.001
PUBLISHED = {0.04945: 19.29962, 0.1: 13.06742}
PRINTED = {0.04945: "86", 0.1: "91"}
HERE = Path(__file__).parent


def sizes(growing: bool) -> list[tuple[int, int]]:
    """Pairs (sample size, rounds of it) that make up K gradients."""
    if not growing:
        return [(SAMPLE, GRADIENTS // SAMPLE)]
    found, left, sample = [], GRADIENTS, SAMPLE
    while left > 0:
        rounds = min(100, max(1, left // sample))
        found.append((sample, rounds))
        left -= rounds * sample
        sample += SAMPLE
        if left < sample:
            break
    return found


def plan_of(sigma: float, growing: bool) -> Plan:
    """One holder's plan; the server steps along the mean, so the step is η₀·s·holders."""
    parts = (Rounds(sigma, rounds, Poisson(s / EXAMPLES)) for s, rounds in sizes(growing))
    # Samples grow as the round does, and steps along a sum fall as its square: means fall as 1/t.
    decay = 0.01 if growing else DECAY
    return Plan(
        Mechanism(*parts),
        EXAMPLES,
        DELTA,
        Clip(0.1),
        optimizer=Optimizer("sgd", ETA * SAMPLE * HOLDERS, ()),
        schedule=Schedule("inverse", decay=decay, unit="rounds"),
        averaging=ft.Averaging("none"),
    )


def exact(epsilon: float, growing: bool) -> float:
    """The least σ for ε."""
    return ft.calibrate(
        lambda sigma: plan_of(sigma, growing).mechanism, ft.Budget(epsilon, DELTA), (0.5, 60.0)
    )


def run(plan: Plan, data: tuple[np.ndarray, np.ndarray], rule: str, seed: int) -> tuple:
    """The trained model and its virtual seconds."""
    torch.manual_seed(seed)
    model = build("linear", inputs=data[0].shape[1:], classes=2, outputs=1)
    shared = SharedModel(model)
    federation = Federation(
        members=tuple(Member(f"holder {holder}") for holder in range(HOLDERS)),
        plans=(plan,),
        parameters=shared.layout.size,
        architecture=shared.architecture,
        rounds=plan.rounds,
        rule=rule,
        exchanged="gradients",
        averaging=plan.averaging,
    )
    records = as_records(data, torch.float32, torch.device("cpu"))
    holders = [
        Holder(plan, records, logistic, secrets, gradients=True)
        for secrets in (Secrets.draw(Seeds(seed, seed).part(holder)) for holder in range(HOLDERS))
    ]
    trainers = InProcess(shared, holders)
    times = Times([1.0] * HOLDERS, straggling=0.5, seed=seed)
    done = StarSimulator(federation, shared.read(), trainers, times).run()
    shared.write(done.weights)
    return model, done.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where libsvm/ is")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilon", type=float, action="append", choices=tuple(PUBLISHED))
    parser.add_argument("--out", type=Path, default=HERE / "asynchronous.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    problem = problems(arguments.data)[0]
    lines = [
        "| ε | samples | σ | rule | messages a holder | accuracy, mean (least to most) | paper |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    print(*lines, sep="\n", flush=True)
    asked = arguments.epsilon or list(PUBLISHED)
    options = "".join(f" --epsilon {epsilon:g}" for epsilon in arguments.epsilon or ())
    head = (
        "# Five holders, asynchronously\n\nWritten by `python experiments/federated/"
        f"asynchronous.py --seeds {arguments.seeds}{options}`, which says what the rows are.\n\n"
    )
    for epsilon, published in PUBLISHED.items():
        if epsilon not in asked:
            continue
        for growing, sigma, rule in (
            (False, published, "published"),
            (False, exact(epsilon, False), "published"),
            (False, exact(epsilon, False), "synchronous"),
            (True, exact(epsilon, True), "published"),
        ):
            plan = plan_of(sigma, growing)
            found = [
                100 * problem.score(run(plan, problem.data, rule, seed)[0])
                for seed in range(arguments.seeds)
            ]
            made = (
                f"| {epsilon:g} | {'growing' if growing else 'constant'} | {sigma:.2f} | "
                f"{'1-asynchronous' if rule == 'published' else rule} | {plan.rounds:,} | "
                f"{statistics.mean(found):.1f} ({min(found):.1f} to {max(found):.1f}) | "
                f"{PRINTED[epsilon] if not growing and sigma == published else ''} |"
            )
            print(made, flush=True)
            lines.append(made)
            arguments.out.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
