"""What shifts and a small network would add to deep patch features, on held-out training images.

    python experiments/patches/further.py --data DIR    # further.csv; twenty minutes of one core

The images, noise and budgets of ``variants.py``. *Averaged*: features of an image and of it shifted
by so many pixels up, down, left and right, averaged and brought to norm 1 again. *Copies*: those
five as augmentations, whose gradients are averaged before clipping, and whose scores are averaged
where accuracy is measured. *Network*: a convolution of 1 × 1 with 32 channels, tanh and a linear
layer, trained with the noise that its budget has, at ε = 3 alone; the best of its step sizes, which
nothing is paid for. Finished rows are kept; ``--smoke``: a hundred images, nothing kept.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from side_by_side import CLASSES, CLIP, MOMENTUM, ROUNDS, noise_multiplier, step_size
from torch import Tensor
from variants import COUNT, FIRST, MEASURE, RECORDS, RUNS, measured

from forethought.data import load
from forethought.data.deep_patches import CHANNELS, deep_patch_features
from forethought.data.patches import GRID

KEPT = Path(__file__).with_name("further.csv")
FIELDS = ("features", "epsilon 1", "epsilon 3", "epsilon 8")
STEPS, NETWORK_ROUNDS, HIDDEN = (0.5, 1.0, 2.0, 4.0, 8.0), 60, 32
_PART = 250  # records at a time


def shifted(images: np.ndarray, pixels: int) -> list[np.ndarray]:
    """The images, and four times shifted; what comes in repeats the edge."""
    found = [images]
    for axis in (2, 3):
        for way in (-pixels, pixels):
            places = np.clip(np.arange(images.shape[axis]) + way, 0, images.shape[axis] - 1)
            found.append(np.take(images, places, axis=axis))
    return found


def trained_on_copies(inputs: Tensor, targets: Tensor) -> Tensor:
    """As ``side_by_side.trained``, for (N, copies, features): weights (features, runs, classes)."""
    N, copies, size = inputs.shape
    weights, speed = torch.zeros(2, size, len(RUNS), CLASSES)
    generators = [torch.Generator().manual_seed(run.seed) for run in RUNS]
    steps = torch.tensor([step_size(run, RECORDS) for run in RUNS])[:, None]
    scales = [noise_multiplier(run.epsilon, RECORDS) * CLIP / RECORDS for run in RUNS]
    for _ in range(ROUNDS):
        now, total = weights.flatten(1).bfloat16(), torch.zeros(size, len(RUNS) * CLASSES)
        for at in range(0, N, _PART):
            part = inputs[at : at + _PART]
            slopes = (part @ now).float().view(len(part), copies, len(RUNS), CLASSES).softmax(-1)
            places = torch.arange(len(part))
            slopes[places, :, :, targets[at : at + _PART]] -= 1
            products = (part @ part.mT).float()  # of copies; a mean gradient's norm follows
            alike = torch.einsum("nkrc,nlrc,nkl->nr", slopes, slopes, products)
            norms = alike.clamp_min(1e-24).sqrt() / copies
            slopes *= (CLIP / norms).clamp_max(1)[:, None, :, None] / copies
            flat = slopes.flatten(2).bfloat16().flatten(0, 1)
            total += (part.flatten(0, 1).T @ flat).float()
        gradient = total.view(size, len(RUNS), CLASSES) / N
        for i, (scale, generator) in enumerate(zip(scales, generators, strict=True)):
            gradient[:, i] += scale * torch.randn(size, CLASSES, generator=generator)
        speed = MOMENTUM * speed + gradient
        weights -= steps * speed
    return weights


def copies_measured(inputs: Tensor, targets: Tensor, measure: int) -> tuple[str, ...]:
    """Mean accuracies at the three budgets."""
    weights = trained_on_copies(inputs[:-measure], targets[:-measure])
    now, right = weights.flatten(1).bfloat16(), torch.zeros(len(RUNS))
    held, wanted = inputs[-measure:], targets[-measure:]
    for at in range(0, measure, _PART):
        scores = (held[at : at + _PART].float().mean(1).bfloat16() @ now).float()
        best = scores.view(-1, len(RUNS), CLASSES).argmax(-1)
        right += (best == wanted[at : at + _PART, None]).float().sum(0)
    found = (100 * right / measure).tolist()
    means = (sum(found[:3]) / 3, sum(found[3:5]) / 2, found[5])
    return tuple(f"{mean:.2f}" for mean in means)


def network_measured(inputs: Tensor, targets: Tensor, measure: int, step: float) -> float:
    """Accuracy of the network at ε = 3, percent. Only its linear layer has intercepts."""
    made = torch.Generator().manual_seed(0)
    # An image's norm is 1, spread over sixteen places: responses of order one want large filters.
    filters = GRID * torch.randn(HIDDEN, CHANNELS, generator=made)
    weights = [filters, torch.zeros(CLASSES, HIDDEN * GRID**2), torch.zeros(CLASSES)]
    speed = [torch.zeros_like(one) for one in weights]
    noise = noise_multiplier(3.0, RECORDS, NETWORK_ROUNDS) / RECORDS
    count = len(inputs) - measure
    for _ in range(NETWORK_ROUNDS):
        total = [torch.zeros_like(one) for one in weights]
        for at in range(0, count, _PART):
            part = inputs[at : min(at + _PART, count)].float().view(-1, CHANNELS, GRID**2)
            clipped = clipped_sums(weights, part, targets[at : at + len(part)])
            total = [one + other for one, other in zip(total, clipped, strict=True)]
        for place, one in enumerate(total):
            drawn = torch.randn(one.shape, generator=made)
            speed[place] = MOMENTUM * speed[place] + one / count + noise * drawn
            weights[place] = weights[place] - step * speed[place]
    right = 0
    for part, wanted in zip(
        inputs[-measure:].split(_PART), targets[-measure:].split(_PART), strict=True
    ):
        scores = outputs(weights, part.float().view(-1, CHANNELS, GRID**2))[1]
        right += int((scores.argmax(1) == wanted).sum())
    return 100 * right / measure


def outputs(weights: list[Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
    """What the convolution gives, (N, hidden, places), and scores, (N, classes)."""
    filters, linear, intercepts = weights
    hidden = (filters @ images).tanh()
    return hidden, hidden.flatten(1) @ linear.T + intercepts


def clipped_sums(weights: list[Tensor], images: Tensor, targets: Tensor) -> list[Tensor]:
    """Sums of the records' gradients, each of norm 1 at most."""
    hidden, scores = outputs(weights, images)
    slopes = scores.softmax(1)
    slopes[torch.arange(len(images)), targets] -= 1
    behind = (slopes @ weights[1]).view_as(hidden) * (1 - hidden**2)
    # A filter's gradient sums over places: its norm needs products of places alone.
    squares = ((behind.mT @ behind) * (images.mT @ images)).sum((1, 2))
    squares += slopes.square().sum(1) * (hidden.flatten(1).square().sum(1) + 1)
    factors = squares.clamp_min(1e-24).rsqrt().clamp_max(1.0)
    slopes *= factors[:, None]
    behind *= factors[:, None, None]
    by_filter = behind.transpose(0, 1).flatten(1) @ images.transpose(0, 1).flatten(1).T
    return [by_filter, slopes.T @ hidden.flatten(1), slopes.sum(0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where cifar10/ is")
    parser.add_argument("--smoke", action="store_true", help="a hundred images, nothing kept")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    count, measure = (100, 30) if arguments.smoke else (COUNT, MEASURE)
    steps = STEPS[:1] if arguments.smoke else STEPS
    whole = load("cifar10", folder=arguments.data).train
    images = np.asarray(whole.inputs[FIRST : FIRST + count])
    targets = torch.from_numpy(whole.targets[FIRST : FIRST + count])
    rows: list[tuple[str, ...]] = []
    if KEPT.exists() and not arguments.smoke:
        with KEPT.open(newline="") as file:
            rows = [tuple(row) for row in csv.reader(file)][1:]

    def keep(*row: str) -> None:
        rows.append(row)
        print(*row, flush=True)
        if not arguments.smoke:
            with KEPT.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([FIELDS, *rows])

    there = {row[0] for row in rows}
    for pixels in (1, 2):
        names = f"averaged over shifts by {pixels}", f"copies shifted by {pixels}"
        if there.issuperset(names):
            continue
        copies = torch.stack(
            [
                deep_patch_features(torch.from_numpy(one.copy())).flatten(1).bfloat16()
                for one in shifted(images, pixels)
            ],
            1,
        )
        if "as they are" not in there and pixels == 1:
            keep("as they are", *measured(copies[:, 0], targets, measure)[1:])
            best = max((network_measured(copies[:, 0], targets, measure, s), s) for s in steps)
            keep(f"network of {HIDDEN} channels, step {best[1]:g}", "", f"{best[0]:.2f}", "")
        mean = torch.cat([part.float().mean(1) for part in copies.split(_PART)])
        mean /= mean.norm(dim=1, keepdim=True)
        keep(names[0], *measured(mean.bfloat16(), targets, measure)[1:])
        keep(names[1], *copies_measured(copies, targets, measure))


if __name__ == "__main__":
    main()
