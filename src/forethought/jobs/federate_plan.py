"""What a job's federation would spend, send and take, and a rehearsal of it on a public proxy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forethought.jobs.federate import Federated
from forethought.jobs.public_proxy import SYNTHETIC, public_records
from forethought.planning.federated import FederatedPlan, predict


@dataclass(frozen=True)
class FederatedRehearsal:
    """Accuracies of the federation on data that nobody has to protect.

    Args:
        source: of the data. accuracies: of each repeat, in [0, 1]. seconds: virtual, of each.
    """

    source: str
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def predicted(self) -> float:
        """Mean accuracy."""
        return float(np.mean(self.accuracies))


def plan_job(federated: Federated) -> FederatedPlan:
    """The costs of a job's federation."""
    return predict(federated.federation, federated.budgets, federated.speeds, federated.times)


def rehearse(
    federated: Federated,
    proxy: str | None,
    repeats: int,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FederatedRehearsal:
    """Simulate a job's federation, whole, on a public proxy of its data.

    Every client gets as many records as its own plan is for, dealt at random: label skew and other
    differences between clients are not rehearsed.

    Args:
        proxy: a named public data set of the same shape; None or ``"synthetic"`` draws one.
        repeats: each with its own records, first weights, batches and noise.

    Raises:
        ValueError: a proxy of another shape, or with too few records.
    """
    from forethought.federated.simulate import simulate
    from forethought.rounds.randomness import Seeds

    job, private = federated.loaded.request.job, federated.loaded.dataset
    plans = map(federated.federation.plan, range(len(federated.parts)))
    sizes = [plan.examples for plan in plans]
    accuracies, seconds = [], []
    for repeat in range(repeats):
        data = public_records(federated.loaded, proxy, sum(sizes), repeat, data_dir)
        generator = np.random.default_rng(repeat)
        order = generator.permutation(len(data.train))[: sum(sizes)]
        parts = np.split(order, np.cumsum(sizes)[:-1])
        run = simulate(
            job.build_model(private),
            [(data.train.inputs[part], data.train.targets[part]) for part in parts],
            federated.federation,
            federated.times,
            test=None if data.test is None else (data.test.inputs, data.test.targets),
            seeds=Seeds(repeat, repeat),
        )
        accuracies.append(float("nan") if run.accuracy is None else run.accuracy)
        seconds.append(run.simulated.seconds)
        if progress is not None:
            progress(repeat + 1, repeats)
    return FederatedRehearsal(proxy or SYNTHETIC, tuple(accuracies), tuple(seconds))
