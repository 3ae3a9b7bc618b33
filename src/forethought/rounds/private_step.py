"""One round: clipped contributions → noised sum → mean → optimizer step.

The caller draws the batch and says how much noise; nothing here knows how many rounds there are,
so that any source of rounds (a fixed plan, adaptive phases, a federated client) can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from forethought.gradients import clipped_sum, clipping
from forethought.gradients.trees import call
from forethought.plans import Clip
from forethought.rounds.losses import Loss
from forethought.rounds.noise import GaussianNoise
from forethought.rounds.records import Records
from forethought.rounds.sampling import Indices


class Release(NamedTuple):
    """The privacy-relevant numbers of one round, and what its result is divided by.

    Args:
        clip_norm: bound C on one contribution.
        noise_std: standard deviation of the noise on every coordinate of the sum: σ·C.
        divisor: public: the expected batch size, or the number of groups, whose updates are
            already means over their records.
    """

    clip_norm: float
    noise_std: float
    divisor: float


class Groups(NamedTuple):
    """Which of ``number`` groups each record of a batch is in: int64, shape (batch,)."""

    member_of: Indices
    number: int


class FlatGradient:
    """All gradients in one vector, of which every parameter's ``.grad`` is a view.

    One vector takes the noise and the division in one operation each.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        first = next(iter(parameters.values()))
        wide = any(p.dtype == torch.float64 for p in parameters.values())
        size = sum(p.numel() for p in parameters.values())
        dtype = torch.float64 if wide else torch.float32
        self.vector = torch.zeros(size, dtype=dtype, device=first.device)
        pieces = torch.split(self.vector, [p.numel() for p in parameters.values()])
        self._views = {
            name: piece.view(p.shape)
            for (name, p), piece in zip(parameters.items(), pieces, strict=True)
        }
        self._converted = {n: p for n, p in parameters.items() if p.dtype != dtype}
        for name, parameter in parameters.items():
            if parameter.dtype == dtype:
                parameter.grad = self._views[name]

    def add(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add one micro-batch's sums; a missing name adds nothing."""
        for name, gradient in gradients.items():
            self._views[name].add_(gradient)

    def publish(self) -> None:
        """Convert for the parameters whose precision is not the vector's."""
        for name, parameter in self._converted.items():
            parameter.grad = self._views[name].to(parameter.dtype)


class PrivateStep:
    """Computes rounds of one model with one optimizer; memory does not grow with their number.

    Args:
        model: its trainable parameters are changed in place.
        loss: one value per example.
        clip: the rule; its norm comes with each release.
        optimizer: over the model's trainable parameters.
        micro_batch: examples whose gradients are held at once; None: the whole batch. It changes
            memory only.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        clip: Clip,
        optimizer: torch.optim.Optimizer,
        micro_batch: int | None = None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self._rule = clipping.rule(clip)
        self._micro_batch = micro_batch
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = parameters
        self._flat = FlatGradient(parameters)
        self._noise = GaussianNoise(self._flat.vector.shape[0])
        self._no_norms = torch.zeros(0, device=self._flat.vector.device)

    def prepare(self, records: Records) -> None:
        """Let the gradients find their way through the model on the first records, made finite.

        What is found is kept for the rounds to come. On the batch that happens to be first, a
        resumed run could find another way, which rounds differently. Nothing is released.
        """
        inputs, targets = records.take(np.arange(min(3, len(records))))
        inputs, targets = tree_map(_finite, (inputs, targets))
        device = self._flat.vector.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            clipped_sum(self.model, self.loss, inputs, targets, 1.0, clip=self._rule)

    def sum_contributions(
        self, records: Records, indices: Indices, release: Release, groups: Groups | None
    ) -> torch.Tensor:
        """Put the sum of clipped contributions into the flat gradient.

        Args:
            groups: which group each record is in; None clips examples.

        Returns:
            Norms before clipping, shape (examples,) or (groups,).
        """
        self._flat.vector.zero_()
        if groups is not None:
            return self._sum_groups(records, indices, release, groups)
        size = len(indices)
        if not size:
            return self._no_norms
        piece = self._micro_batch or size
        norms = []
        for start in range(0, size, piece):
            inputs, targets = records.take(indices[start : start + piece])
            sums, found = clipped_sum(
                self.model, self.loss, inputs, targets, release.clip_norm, clip=self._rule
            )
            self._flat.add(sums)
            norms.append(found)
        return norms[0] if len(norms) == 1 else torch.cat(norms)

    def _sum_groups(
        self, records: Records, indices: Indices, release: Release, groups: Groups
    ) -> torch.Tensor:
        # Group by group, so that one group's examples are the most that is held.
        norms = self._flat.vector.new_zeros(groups.number)
        for group in range(groups.number):
            members = indices[groups.member_of == group]
            if not len(members):
                continue  # contributes zero
            if self._micro_batch is not None and len(members) > self._micro_batch:
                sums, norm = self._long_group(records, members, release)
            else:
                inputs, targets = records.take(members)
                sums, norm = clipped_sum(
                    self.model,
                    self.loss,
                    inputs,
                    targets,
                    release.clip_norm,
                    groups=torch.zeros(len(members), dtype=torch.int64, device=norms.device),
                    clip=self._rule,
                )
            self._flat.add(sums)
            norms[group] = norm[0]
        return norms

    def _long_group(
        self, records: Records, members: Indices, release: Release
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """One group's clipped mean gradient, summed up over micro-batches before it is clipped."""
        piece = self._micro_batch or len(members)
        names, parameters = tuple(self.parameters), tuple(self.parameters.values())
        dtype = self._flat.vector.dtype
        mean = {name: torch.zeros_like(p, dtype=dtype) for name, p in self.parameters.items()}
        for start in range(0, len(members), piece):
            inputs, targets = records.take(members[start : start + piece])
            total = self.loss(call(self.model, inputs), targets).sum() / len(members)
            found = torch.autograd.grad(
                total, parameters, allow_unused=True, materialize_grads=True
            )
            for name, gradient in zip(names, found, strict=True):
                mean[name].add_(gradient)
        table = torch.stack([torch.linalg.vector_norm(mean[name]) for name in names])
        norms = clipping.Norms(names, table.unsqueeze(1))
        scale = clipping.factors(norms, release.clip_norm, self._rule)
        if not bool(torch.isfinite(norms.total).all()):
            return {}, norms.total
        return {n: mean[n] * row for n, row in zip(names, scale, strict=True)}, norms.total

    def update(self, release: Release, step_size: float, noise: np.random.Generator) -> None:
        """Add the noise to the sum, divide, and step the optimizer."""
        vector = self._flat.vector
        if release.noise_std:
            self._noise.add_to(vector, release.noise_std, noise)
        vector.div_(release.divisor)
        self._flat.publish()
        for group in self.optimizer.param_groups:
            group["lr"] = step_size
        self.optimizer.step()

    def clear(self) -> None:
        """Take the gradients off the parameters: the model is as it was, but for its weights."""
        for parameter in self.parameters.values():
            parameter.grad = None


def _finite(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.nan_to_num(0.0, 0.0, 0.0)
    return leaf
