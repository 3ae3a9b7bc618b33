"""How much noise can the model bear? Ask synthetic data, then plan and train privately.

Run me with `python examples/utility_graph.py`: a few seconds. The private data here is
scikit-learn's digits; the graph is drawn on synthetic images of the same shape.
"""

from pathlib import Path

import numpy as np

import forethought as ft
from forethought.data import load
from forethought.data.synthetic import like
from forethought.models import build
from forethought.report.figures import draw_utility

private = load("digits")
examples, shape = len(private.train), private.train.inputs.shape[1:]
public = like(shape, private.classes, examples)
model = build("linear", inputs=shape, classes=10)

graph = ft.utility_graph(
    model,
    (public.train.inputs, public.train.targets),
    test=(public.test.inputs, public.test.targets),
    source="synthetic",
    clip_norms=np.geomspace(0.01, 1, 9),
    noise_multipliers=np.geomspace(0.5, 20, 20),
    batch=200,
    epochs=20,
    optimizer=ft.Optimizer("sgd", 10.0),
)
print(*draw_utility(graph, Path("runs/utility"), tolerance=0.1), sep="\n")
for clip_norm, (low, high) in graph.admissible(tolerance=0.1):
    print(f"C = {clip_norm:.3g} bears σ from {low:.3g} to {high:.3g}")
print(graph.choose(tolerance=0.1).reason)

# σ and C are settled; with the budget and the batch, so is the number of rounds.
plan = ft.plan(
    examples=examples,
    budget=ft.Budget(epsilon=3.0, delta=1e-4),
    batch=200,
    **graph.plan_arguments(tolerance=0.1),
)
run = ft.train(
    model,
    (private.train.inputs, private.train.targets),
    plan,
    test=(private.test.inputs, private.test.targets),
)
print(f"{plan.rounds} rounds at σ = {plan.noise_multiplier:.3g}: accuracy {run.accuracy:.1%}")
