"""Train in phases until 85 % are right or ε = 2 is used up: `python examples/until_accuracy.py`.

The first run follows phases that were fixed beforehand; the second lets the missing accuracy
choose noise and sample size of the next phase, within a Rényi filter.
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import forethought as ft
from forethought.planning.alternatives import next_by_shortfall

images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(
    images.astype("float32") / 16, labels, test_size=0.2, random_state=0
)

whole = ft.plan(examples=len(train_y), budget=ft.Budget(epsilon=2.0, delta=1e-5), epochs=20)
phases = ft.plan_phases(whole, phases=3)
print(phases.explain(), "\n")

for rule in (None, next_by_shortfall):
    run = ft.train_until(
        nn.Linear(64, 10),
        (train_x, train_y),
        phases,
        accuracy=0.85,
        test=(test_x, test_y),
        next_phase=rule,
    )
    for phase in run.phases:
        noise, rounds = phase.rounds.noise_multiplier, phase.rounds.count
        print(f"{rounds} rounds with σ = {noise:.3g}: accuracy {phase.accuracy:.1%}")
    print(f"stopped because {run.stopped}")
    print(*run.statement.sentences(), "", sep="\n")
