"""Real training of many holders on one computer: what a simulated star and graph share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from forethought.accounting.statement import Randomness, Statement
from forethought.exchange.events import Release
from forethought.exchange.messages import Vector
from forethought.holders.recorded import RECORD, Recorded, begun
from forethought.holders.trainer import Holder, SharedModel, released
from forethought.holders.work import Trainers
from forethought.holders.workers import InProcess, Workers
from forethought.rounds.contributions import check_loss
from forethought.rounds.losses import Loss, default_loss
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import Records, as_records, blank
from forethought.rounds.transcript import TRANSCRIPT, Transcript
from forethought.training.folder import KEYS, PLAN, locked, wipe
from forethought.training.metrics import evaluate
from forethought.training.records import require_fit
from forethought.values.mechanism import LocalRounds
from forethought.values.plan import Plan
from forethought.values.serialisation import Stored

SUMMARY = "simulation.json"
Progress = Callable[[int, int], None]
Held = TypeVar("Held")


@dataclass
class Simulation:
    """Holders that are ready to compute, and what they released so far.

    Attributes:
        shared: the model of all. loss: one value per example. test: held-out records.
        folder: what is kept; None: nothing. holders: one for each share.
        start: the weights that all begin with. secrets: of all holders.
        engine: of the processes that compute.
    """

    shared: SharedModel
    loss: Loss
    test: Records | None
    folder: Path | None
    holders: Sequence[Holder]
    start: Vector
    secrets: Secrets
    engine: str
    _held: contextlib.ExitStack
    _states: dict[int, bytes] = field(default_factory=dict)
    _count: int = 0

    def trainers(self, workers: int, local_rounds: LocalRounds = 1, *, gradients: bool) -> Trainers:
        """Computes updates, recorded where a folder is kept; on one thread from now on.

        Args:
            workers: processes that compute; 0: this one.
            local_rounds: private rounds in an update. gradients: noised means, not weights.
        """

        def make(states: dict[int, bytes]) -> Trainers:
            shared, holders = self.shared, self.holders
            if not workers:
                return InProcess(shared, holders, local_rounds, gradients=gradients, states=states)
            pool = Workers(
                workers,
                shared,
                holders,
                local_rounds,
                gradients=gradients,
                states=states,
                engine=self.engine,
            )
            return self.until_the_end(pool)

        return self.recorded(make)

    def recorded(
        self, make: Callable[[dict[int, bytes]], Trainers], name: str = RECORD
    ) -> Trainers:
        """Trainers with a record where a folder is kept; on one thread from now on.

        Args:
            make: makes them, given the states that holders go on from. name: of the record.
        """
        made = make({}) if self.folder is None else Recorded(self.folder, make, name)
        self._held.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        return made

    def until_the_end(self, held: contextlib.AbstractContextManager[Held]) -> Held:
        """Enter a context that ends with the simulation."""
        return self._held.enter_context(held)

    def committing(self, progress: Progress | None, most: int) -> Callable[[int, Release], None]:
        """Takes each release down and tells ``progress``, out of ``most`` there can be."""

        def committed(holder: int, release: Release) -> None:
            self._states[holder] = release.state
            self._count += 1
            if progress is not None:
                progress(min(self._count, most), most)

        return committed

    def accuracy(self, weights: Vector) -> float | None:
        """On the held-out records; None without any."""
        if self.test is None:
            return None
        parts = self.shared.layout.views(torch.from_numpy(np.array(weights)))
        return evaluate(self.shared.model, parts, self.loss, self.test)[1]

    @property
    def transcripts(self) -> tuple[Transcript, ...]:
        """The releases of each holder."""
        return tuple(released(self._states.get(k, b"")) for k in range(len(self.holders)))

    @property
    def randomness(self) -> Randomness:
        """The randomness of it that is seeded."""
        return Randomness(
            seeded_sampling=self.secrets.seeded_sampling, seeded_noise=self.secrets.seeded_noise
        )

    def finish(
        self,
        own: Sequence[Path],
        files: dict[str, str],
        statements: Sequence[Statement | None],
        transcripts: Sequence[Transcript],
        summary: dict[str, Any],
        temporary: Sequence[str] = (),
    ) -> None:
        """Keep the results; nothing where no folder is kept.

        Args:
            own: each holder's folder in this one. files: beside each statement, by name.
            temporary: files that only going on needs, beside the record.
        """
        if self.folder is None:
            return
        from safetensors.torch import save_file

        folder = self.folder
        save_file(self.shared.model.state_dict(), str(folder / "model.safetensors"))
        for path, holder, statement, made in zip(
            own, self.holders, statements, transcripts, strict=True
        ):
            if statement is not None:
                (folder / path).mkdir(parents=True, exist_ok=True)
                evidence = {PLAN: holder.plan.to_json(), TRANSCRIPT: made.to_json(), **files}
                statement.save(folder / path, evidence)
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2), encoding="utf-8")
        wipe(folder / KEYS)
        for name in (RECORD, *temporary):
            (folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def simulation(
    shared: SharedModel,
    shares: Sequence[object],
    plans: Sequence[Plan],
    agreed: Stored,
    file: str,
    *,
    loss: Loss | None,
    test: object | None,
    seeds: Seeds | None,
    out: str | Path | None,
    resume: bool,
    engine: str,
    micro_batch: int | None,
) -> Iterator[Simulation]:
    """Holders of these shares, each with its plan; the folder is locked meanwhile.

    Args:
        agreed: what all agree on; ``file``: its name in the folder. For the others see the callers.
    """
    model = shared.model
    first = next(iter(shared.parameters.values()))
    records = [as_records(share, first.dtype, first.device) for share in shares]
    held_out = None if test is None else as_records(test, first.dtype, first.device, "test")
    chosen = default_loss(blank(records[0])[1]) if loss is None else loss
    tried: dict[object, object] = {}
    for one in records:
        require_fit(model, chosen, one, tried=tried)
    check_loss(model, chosen, records[0])
    with contextlib.ExitStack() as held:
        folder = None if out is None else Path(out)
        if folder is not None:
            held.enter_context(locked(folder))
        secrets, start = begun(folder, resume, agreed, file, shared.read(), seeds or Seeds())
        shared.write(start)
        holders = [
            Holder(plan, one, chosen, secrets.of(k), micro_batch)
            for k, (plan, one) in enumerate(zip(plans, records, strict=True))
        ]
        yield Simulation(shared, chosen, held_out, folder, holders, start, secrets, engine, held)
