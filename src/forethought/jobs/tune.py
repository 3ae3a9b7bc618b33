"""From a request to a private search for its best step size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forethought.checks import one_of
from forethought.jobs.job import JobError
from forethought.jobs.load import load_job
from forethought.jobs.request import Request, on_pixels

if TYPE_CHECKING:
    from forethought.accounting.adaptive import Trials
    from forethought.training.search import Tuned


def trials_of(distribution: str, mean: float) -> Trials:
    """A distribution of the number of trials by name, with its mean."""
    from forethought.accounting.adaptive import NegativeBinomialTrials, PoissonTrials

    one_of("distribution", distribution, ("negative-binomial", "poisson"))
    if distribution == "poisson":
        return PoissonTrials(mean)
    return NegativeBinomialTrials.of_mean(mean, shape=0)


def tune_job(
    request: Request,
    folder: Path,
    learning_rates: Sequence[float],
    trials: Trials,
    *,
    scoring: str = "noised",
    overwrite: bool = False,
    data_dir: Path | None = None,
) -> Tuned:
    """A private search for the best step size of a job; its budget covers the whole search.

    Raises:
        JobError: no budget, or no held-out data to score on.
    """
    from forethought.planning.search_plans import plan_tuning
    from forethought.training.search import tune as search

    request = on_pixels(request)  # step sizes that are given would be others for features
    job = request.job
    loaded = load_job(request, data_dir)
    if job.budget.epsilon is None or loaded.dataset.test is None:
        raise JobError("a private search needs a budget, and held-out data to score trials on")
    candidates = plan_tuning(
        loaded.plan_request(),
        trials=trials,
        candidates=[{"learning_rate": rate} for rate in learning_rates],
    )
    return search(
        lambda: job.build_model(loaded.dataset),
        loaded.dataset,
        candidates,
        trials=trials,
        scoring=scoring,  # type: ignore[arg-type]
        out=folder,
        overwrite=overwrite,
        seed=job.run.seed,
        noise_seed=job.run.noise_seed,
        micro_batch=job.run.micro_batch,
        device=job.run.device,
    )
