"""From a request to its data and its model: the one way in which a job's records are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forethought.caveats import Caveat
from forethought.jobs.card import PREPARED, ModelCard
from forethought.jobs.job import JobError
from forethought.jobs.request import Request
from forethought.plans import Plan
from forethought.training.datasets import with_caveats

if TYPE_CHECKING:
    from torch import nn

    from forethought.data import Dataset
    from forethought.rounds.losses import Loss


_DECLARED = Caveat(
    "declared-shape", "the range or the constants that features are standardised with"
)


@dataclass(frozen=True)
class Loaded:
    """A request with its data and a fresh model.

    Everything that is planned from a job's data goes through :meth:`with_caveats`, so that what
    loading read from private records reaches the Statement whichever way the plan is used.
    """

    request: Request
    dataset: Dataset
    model: nn.Module

    @property
    def examples(self) -> int:
        """Training records."""
        return len(self.dataset.train)

    @property
    def parameters(self) -> int:
        """How many numbers the model trains."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def features(self) -> int:
        """Features or channels of a record."""
        return self.dataset.shape[0]

    @property
    def loss(self) -> Loss | None:
        """One value a record; None: the usual one for its targets."""
        if self.dataset.row_shape is None:
            return None
        from forethought.training.persons import person_loss

        return person_loss

    def require_rows(self, what: str) -> None:
        """Refuse a job whose records are persons where only rows are known.

        Raises:
            JobError: names what cannot be done.
        """
        if self.dataset.row_shape is not None:
            raise JobError(
                f"[data] person: {what} works on rows, not on persons, so far: leave person out, "
                "and mind that ε is then about one row"
            )

    def card(self) -> ModelCard:
        """What is needed, besides the weights, to apply the trained model to new records."""
        job, data = self.request.job, self.dataset
        return ModelCard(
            job.model.name,
            job.model.options,
            data.shape,
            data.classes,
            job.data.features if isinstance(job.data.features, str) else None,
            PREPARED if isinstance(job.data.standardise, str) else job.data.standardise,
            data.encoder,
        )

    def with_caveats(self, plan: Plan) -> Plan:
        """The plan with what loading read from the private data, each thing once."""
        declared = self.request.job.data.standardise
        own = () if declared is None else (_DECLARED,)
        return with_caveats(plan, (*self.dataset.caveats, *own))


def load_job(request: Request, data_dir: Path | None = None) -> Loaded:
    """Read the data of a job and build its model; nothing is released yet.

    Args:
        data_dir: goes before the job's own folder.

    Raises:
        forethought.data.DataError: missing, damaged or unsuitable data.
        ValueError: no such model, or options it does not have.
    """
    from forethought.models.zoo import importable_from

    dataset = request.job.load_data(data_dir)
    with importable_from(request.folder or Path.cwd()):
        return Loaded(request, dataset, request.job.build_model(dataset))
