from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from drawn import rand, randn, stream
from forethought.data import DataError, Dataset, Split, features, load, patches
from forethought.data.patches import (
    CHANNELS,
    FILTERS,
    GRID,
    LEAST,
    MOST,
    PATCH,
    constants,
    normalised_patches,
    patch_features,
    pooled_roots,
    standardised,
)
from learners.dead_leaves import dead_leaves
from learners.patches import counted_filters

# Of the features of `pictures`, and of eight dead-leaves images: whoever changes the numbers on
# purpose changes Extractor.kind as well, so that no stale file is found in a cache.
BITS = {1: "286d87b07d2689ae", 3: "17421dced35fd835"}
LEAVES = "316cb5e1afd4e043"


def pictures(channels: int, count: int = 4, side: int = 20) -> torch.Tensor:
    leaves = dead_leaves(channels, side=side, images=count, seed=3)
    return torch.from_numpy(leaves.astype(np.float32) / np.float32(255))


def digest(values: torch.Tensor | NDArray[np.uint8]) -> str:
    return hashlib.sha256(np.asarray(values).tobytes()).hexdigest()[:16]


def on_other_machines(module: str, features: str, chunks: tuple[int, int]) -> Iterator[list[str]]:
    """Digests of features of grey and colour: with old instructions, and with three threads.

    Args:
        module: whose names they are in. features: of c channels, with a place for the chunk.
    """
    old = {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
    }
    for threads, chunk, variables in ((1, chunks[0], old), (3, chunks[1], {})):
        script = (
            f"import torch; from {module} import *; torch.set_num_threads({threads});"
            f"print(*(digest({features.format(chunk)}) for c in (1, 3)))"
        )
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        yield run.stdout.split()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_bits_are_those_of_every_other_machine(channels):
    assert digest(patch_features(pictures(channels))) == BITS[channels]


def test_synthetic_images_are_the_same_bits():
    assert digest(dead_leaves(3, images=8)) == LEAVES


@pytest.mark.slow
def test_another_instruction_set_and_other_threads_give_the_same_bits():
    for found in on_other_machines(__name__, "patch_features(pictures(c), chunk={})", (3, 4)):
        assert found == [BITS[1], BITS[3]]


def test_neither_chunks_nor_low_precision_products_nor_a_mirror_change_a_bit():
    images = pictures(3)
    expected = patch_features(images)
    assert torch.equal(patch_features(images, chunk=1), expected)
    assert torch.equal(patch_features(images.flip(-1)), expected)
    assert torch.equal(torch.cat([patch_features(image[None]) for image in images]), expected)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(patch_features(images), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_windows_are_their_own_mirror_images():
    """What makes the pooled responses of a mirror image the mirrored ones, for every size."""
    for side in range(LEAST, MOST + 1):
        windows = patches.windows(side - PATCH + 1)
        assert torch.equal(windows, windows.flip(0, 1))
        assert int(windows.sum(1).max()) <= patches.WEIGHT


@pytest.mark.parametrize("channels", [1, 3])
def test_features_agree_with_a_plain_implementation(channels):
    """Float64, one patch at a time; of the roundings only patches and windows are counted alike."""
    image = pictures(channels, count=1)
    known = constants(channels)
    filters = known.filters / np.exp2(known.exponents.astype(np.float64))[:, None]
    pixels = np.round(image[0].double().numpy() * 255)
    pooled = sum(_pooled(view, filters) for view in (pixels, pixels[..., ::-1]))
    roots = np.sqrt(pooled)
    rows = (roots - roots.mean()) / roots.std() - known.means[:, None, None] / 256
    mixed = np.einsum("cd,dhw->chw", known.matrix / 4096, rows)
    expected = mixed / np.linalg.norm(mixed)
    got = patch_features(image)[0].double().numpy()
    assert np.corrcoef(got.ravel(), expected.ravel())[0, 1] > 0.9995
    assert np.abs(got - expected).max() < 0.003


def _pooled(pixels: NDArray[np.float64], filters: NDArray[np.float64]) -> NDArray[np.float64]:
    side = pixels.shape[-1] - 5
    responses = np.empty((CHANNELS, side, side))
    for row in range(side):
        for column in range(side):
            patch = pixels[:, row : row + 6, column : column + 6].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10)
            z = filters @ np.clip(np.round(32 * patch), -127, 127) / 32
            responses[:FILTERS, row, column] = np.maximum(z - 0.5, 0)
            responses[FILTERS:, row, column] = np.maximum(-z - 0.5, 0)
    width = side / GRID
    centres = (np.arange(GRID)[:, None] + 0.5) * width - 0.5
    weights = np.clip(1 - np.abs(np.arange(side) - centres) / width, 0, None)
    weights = np.round(40 * weights / weights.sum(1).max())
    weights /= weights.sum() / GRID
    pooled: NDArray[np.float64] = weights @ responses @ weights.T
    return pooled


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]), st.sampled_from([12, 17, 32]))
def test_sums_are_exact_whatever_the_image(seed, channels, side):
    """The same sums in double precision, and in another order, from the harshest images."""
    random = np.random.default_rng(seed)
    harsh = (random.random((2, channels, side, side)) < random.random()).astype(np.float32)
    images = torch.from_numpy(harsh)
    known = constants(channels)
    single = pooled_roots(images, known.filters, known.exponents)
    patches = normalised_patches(images).double()
    weights = torch.from_numpy(known.filters.astype(np.float64))
    order = torch.from_numpy(random.permutation(weights.shape[1]))
    sums = patches[..., order] @ weights[:, order].T
    assert sums.abs().max() < 2**24
    assert torch.equal((patches.float() @ weights.float().T).double(), sums), (
        "a product of whole numbers was rounded"
    )
    shuffled = pooled_roots(images.flip(-1), known.filters, known.exponents)
    assert torch.equal(single, shuffled)


def test_flat_and_empty_images_are_finite_and_no_longer_than_one():
    images = torch.stack([torch.zeros(1, 14, 14), torch.ones(1, 14, 14), rand(1, 14, 14)])
    rows = patch_features(images).flatten(1)
    assert torch.isfinite(rows).all()
    assert (rows.double().norm(dim=1) <= 1).all()
    assert patch_features(images[:0]).shape == (0, CHANNELS, GRID, GRID)
    assert torch.equal(rows, rows.bfloat16().float())


def test_the_constants_decorrelate_shapes_that_they_were_not_learnt_from():
    fresh = pictures(1, count=60, side=32)
    known = constants(1)
    rows = standardised(pooled_roots(fresh, known.filters, known.exponents))
    rows = rows.movedim(1, -1).flatten(0, 2) - torch.from_numpy(known.means / 256)
    before = torch.linalg.eigvalsh(rows.T @ rows / len(rows))[-1]
    flat = rows @ torch.from_numpy(known.matrix / 4096)
    after = torch.linalg.eigvalsh(flat.T @ flat / len(flat))[-1]
    assert before > 20 * after


def test_filters_are_counted_to_seven_bits():
    filters = randn(8, 36, generator=stream(0)) * torch.logspace(-3, 2, 8)[:, None]
    counted, exponents = counted_filters(filters)
    back = counted / np.exp2(exponents.astype(np.float64))[:, None]
    assert (np.abs(counted).max(1) >= 63).all()
    largest = filters.abs().amax(1, keepdim=True).double().numpy()
    assert (np.abs(back - filters.double().numpy()) <= largest / 126).all()


@pytest.mark.parametrize(
    "shape", [(2, 2, 20, 20), (2, 1, 11, 20), (2, 1, 20, 97), (2, 20, 20), (2, 400)]
)
def test_other_shapes_are_refused_with_what_is_allowed(shape):
    with pytest.raises(ValueError, match="12 to 96"):
        features.features_of(torch.zeros(shape), "patches")
    split = Split(np.zeros(shape, np.float32), np.zeros(2, np.int64))
    with pytest.raises(DataError, match="own: patches need"):
        features.with_features(Dataset("own", split, None, 2), "patches")


def test_kept_in_half_the_space_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETHOUGHT_CACHE", str(tmp_path))
    images = pictures(1).numpy()
    first = features.cached(images, "patches")
    (kept,) = (tmp_path / "private").glob("patches-*.npy")
    assert kept.stat().st_size < first.nbytes / 2 + 1000
    monkeypatch.setattr(features, "patch_features", None)
    np.testing.assert_array_equal(features.cached(images, "patches"), first)
    assert first.dtype == np.float32


def test_load_says_that_digits_are_too_small():
    with pytest.raises(DataError, match="inputs of shape"):
        load("digits", features="patches")
