from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.data.test_patches import digest, on_other_machines, pictures

from drawn import rand, randn, stream
from forethought.data import DataError, Dataset, Split, deep_patches, features
from forethought.data.deep_patches import (
    BLOCKS,
    CELLS,
    CHANNELS,
    COMPONENTS,
    LEAST,
    WAVES,
    WEIGHTS,
    Components,
    cell_maps,
    cell_patches,
    constants,
    deep_patch_features,
    first_filters,
    halved,
    second_pooled,
)
from forethought.data.patches import FINE, GRID, MOST, Filters, normalised_patches, windows
from learners.deep_patches import arrays_of, leading_components, pooled, standard_counts

# Whoever changes the numbers on purpose changes Extractor.kind as well.
BITS = {1: "b9af74be3919e359", 3: "817d99bb32115331"}
SIDE = 24


@pytest.mark.parametrize("channels", [1, 3])
def test_the_bits_are_those_of_every_other_machine(channels):
    assert digest(deep_patch_features(pictures(channels, 2, SIDE))) == BITS[channels]


@pytest.mark.slow
def test_another_instruction_set_and_other_threads_give_the_same_bits():
    seen = "deep_patch_features(pictures(c, 2, SIDE), chunk={})"
    for found in on_other_machines(__name__, seen, (1, 2)):
        assert found == [BITS[1], BITS[3]]


def test_neither_chunks_nor_low_precision_products_nor_a_mirror_change_a_bit():
    images = pictures(3, 3, SIDE)
    expected = deep_patch_features(images)
    assert torch.equal(deep_patch_features(images, chunk=1), expected)
    assert torch.equal(deep_patch_features(images.flip(-1)), expected)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(deep_patch_features(images), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_blocks_have_the_weights_that_they_are_said_to_have():
    found = deep_patch_features(pictures(3, 2, SIDE)).double().flatten(2)
    ends = np.cumsum([0, *BLOCKS.values()])
    norms = torch.stack(
        [found[:, a:b].flatten(1).norm(dim=1) for a, b in itertools.pairwise(ends)], 1
    )
    expected = torch.tensor(list(WEIGHTS.values())).double()
    expected = expected / expected.norm()
    assert torch.allclose(norms, expected.expand_as(norms), rtol=0.005)  # truncation takes 0.3 %
    assert (found.flatten(1).norm(dim=1) <= 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_features_agree_with_a_plain_implementation(channels):
    """Float64, patch by patch; of the roundings only patches, windows and constants are kept."""
    image = pictures(channels, 1, SIDE)
    known = constants(channels)
    pixels = np.round(image[0].double().numpy() * 255)
    views = (pixels, pixels[..., ::-1])
    first = first_filters(channels)
    half = [
        np.floor((sum(v[:, i::2, j::2] for i in (0, 1) for j in (0, 1)) + 2) / 4) for v in views
    ]
    maps = [
        _components(_roots(_pooled(_responses(view, first), FINE)), known.cells) for view in views
    ]
    blocks = (
        _components(_roots(sum(_pooled(_responses(v, first), GRID) for v in views)), known.first),
        _components(
            _roots(sum(_pooled(_responses(v, known.half_filters), GRID) for v in half)), known.half
        ),
        _components(
            _roots(sum(_pooled(_second(m, known.second_filters), GRID) for m in maps)),
            known.second,
        ),
    )
    at = np.arange(GRID)
    waves = np.cos(np.pi * (at + 0.5) * at[:, None] / GRID)
    waves /= np.linalg.norm(waves, axis=1, keepdims=True)
    smooth = waves.T @ np.diag(WAVES) @ waves
    blocks = [np.einsum("ab,cd,bdk->ack", smooth, smooth, block) for block in blocks]
    length = np.linalg.norm(list(WEIGHTS.values()))
    expected = np.concatenate(
        [
            w / length * block / np.linalg.norm(block)
            for w, block in zip(WEIGHTS.values(), blocks, strict=True)
        ],
        -1,
    ).transpose(2, 0, 1)
    got = deep_patch_features(image)[0].double().numpy()
    ends = np.cumsum([0, *BLOCKS.values()])
    for a, b in itertools.pairwise(ends):
        assert np.corrcoef(got[a:b].ravel(), expected[a:b].ravel())[0, 1] > 0.995


def _values(filters: Filters) -> NDArray[np.float64]:
    found: NDArray[np.float64] = (
        filters.filters / np.exp2(filters.exponents.astype(np.float64))[:, None]
    )
    return found


def _rectified(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([np.maximum(z - 0.5, 0), np.maximum(-z - 0.5, 0)], -1)


def _responses(pixels: NDArray[np.float64], filters: Filters) -> NDArray[np.float64]:
    size = [side - 5 for side in pixels.shape[1:]]
    found = np.empty((*size, 2 * len(filters.filters)))
    for row in range(size[0]):
        for column in range(size[1]):
            patch = pixels[:, row : row + 6, column : column + 6].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10)
            counted = np.clip(np.round(32 * patch), -127, 127) / 32
            found[row, column] = _rectified(_values(filters) @ counted)
    return found


def _second(cells: NDArray[np.float64], filters: Filters) -> NDArray[np.float64]:
    found = np.empty((FINE - 1, FINE - 1, 2 * len(filters.filters)))
    for row in range(FINE - 1):
        for column in range(FINE - 1):
            patch = cells[row : row + CELLS, column : column + CELLS].ravel()
            patch = patch / np.sqrt((patch**2).mean() + 0.1)
            found[row, column] = _rectified(_values(filters) @ patch)
    return found


def _pooled(responses: NDArray[np.float64], grid: int) -> NDArray[np.float64]:
    down, across = (windows(n, grid).double().numpy() for n in responses.shape[:2])
    return np.einsum("ah,bw,hwk->abk", down, across, responses)


def _roots(pools: NDArray[np.float64]) -> NDArray[np.float64]:
    roots = np.sqrt(pools)
    standard: NDArray[np.float64] = (roots - roots.mean()) / roots.std()
    return standard


def _components(rows: NDArray[np.float64], known: Components) -> NDArray[np.float64]:
    scales = np.exp2(-known.filters.exponents.astype(np.float64))
    mixed: NDArray[np.float64] = rows @ _values(known.filters).T - known.offsets * scales / 16
    return mixed


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]), st.sampled_from([LEAST, 27]))
def test_sums_are_exact_whatever_the_image(seed, channels, side):
    """Every product again in double precision and another order, from the harshest images."""
    random = np.random.default_rng(seed)
    harsh = (random.random((1, channels, side, side)) < random.random()).astype(np.float32)
    images = torch.from_numpy(harsh)
    known = constants(channels)
    coarse, fine = pooled(images, first_filters(channels))
    maps = cell_maps(fine.clone(), known.cells)
    for counts, filters in (
        (normalised_patches(images).flatten(0, 2), first_filters(channels)),
        (normalised_patches(halved(images)).flatten(0, 2), known.half_filters),
        (cell_patches(maps[:, 0]).flatten(0, 2), known.second_filters),
        (standard_counts(fine.flatten(0, 1)).flatten(0, 1), known.cells.filters),
        (standard_counts(coarse).flatten(0, 1), known.first.filters),
        (standard_counts(second_pooled(maps, known.second_filters))[0], known.second.filters),
    ):
        assert counts.abs().max() <= 127
        weights = filters.times(1.0)
        order = torch.from_numpy(random.permutation(len(weights)))
        sums = counts.double()[:, order] @ weights.double()[order]
        assert torch.equal((counts @ weights).double(), sums), "a product was rounded"
    for pools in (coarse, fine):
        assert torch.equal(pools, pools.round()) and pools.max() < 2**24


@pytest.mark.parametrize("channels", [1, 3])
def test_no_input_can_make_a_product_inexact(channels):
    """Counts are at most 127, so the filters' sums of sizes bound every partial sum."""
    for name, array in arrays_of(constants(channels)).items():
        if array.ndim == 2:
            assert 127 * np.abs(array.astype(np.int64)).sum(1).max() < 2**24, name
        if name.endswith("offsets"):
            assert np.abs(array).max() < 2**24, name


def test_windows_of_the_fine_grid_are_their_own_mirror_images():
    for side in range(LEAST - 5, MOST - 4):
        found = windows(side, FINE)
        assert torch.equal(found, found.flip(0, 1))
        assert found.sum(1).min() > 0
        assert int(found.sum(1).max()) <= 44


def test_flat_and_empty_images_are_finite_and_no_longer_than_one():
    images = torch.stack([torch.zeros(1, 20, 21), torch.ones(1, 20, 21), rand(1, 20, 21)])
    rows = deep_patch_features(images).flatten(1)
    assert torch.isfinite(rows).all()
    assert (rows.double().norm(dim=1) <= 1).all()
    assert torch.equal(rows, rows.bfloat16().float())
    assert deep_patch_features(images[:0]).shape == (0, CHANNELS, GRID, GRID)


def test_each_image_is_transformed_by_itself():
    images = pictures(1, 3, SIDE)
    alone = torch.cat([deep_patch_features(image[None]) for image in images])
    assert torch.equal(deep_patch_features(images), alone)


def test_leading_components_are_decorrelated():
    """Against the covariance's own eigenvectors, on data of known spectrum."""
    random = stream(0)
    deviations = torch.tensor([40.0, 20.0, 10.0, 1.0, 1.0, 1.0])
    turn, _ = torch.linalg.qr(randn(6, 6, generator=random))
    counts = (randn(200, 20, 6, generator=random) * deviations @ turn.T + 5).round()
    known = leading_components(iter(counts.split(50)), 3)
    found = known.of(counts.clone(), 256.0).flatten(0, 1).double() / 256
    assert found.mean(0).abs().max() < 0.02
    covariance = found.T @ found / len(found)
    values = (deviations[:3] / 16).double() ** 2
    expected = torch.diag(values / (values + 0.1))
    assert (covariance - expected).abs().max() < 0.1


@pytest.mark.parametrize("shape", [(2, 2, 24, 24), (2, 1, 19, 24), (2, 1, 24, 97), (2, 400)])
def test_other_shapes_are_refused_with_what_is_allowed(shape):
    for name in ("deep-patches", "shifted-patches"):
        with pytest.raises(ValueError, match="20 to 96"):
            features.features_of(torch.zeros(shape), name)
    split = Split(np.zeros(shape, np.float32), np.zeros(2, np.int64))
    with pytest.raises(DataError, match="own: deep patches"):
        features.with_features(Dataset("own", split, None, 2), "deep-patches")


def test_kept_in_half_the_space_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETHOUGHT_CACHE", str(tmp_path))
    images = pictures(1, 2, SIDE).numpy()
    first = features.cached(images, "deep-patches")
    (kept,) = (tmp_path / "private").glob("deep-patches-*.npy")
    assert kept.stat().st_size < first.nbytes / 2 + 1000
    monkeypatch.setattr(features, "deep_patch_features", None)
    np.testing.assert_array_equal(features.cached(images, "deep-patches"), first)


def test_constants_have_the_shapes_that_are_promised():
    for channels in (1, 3):
        known = constants(channels)
        assert known.cells.filters.filters.shape == (COMPONENTS, 1024)
        assert known.second_filters.filters.shape[1] == COMPONENTS * CELLS**2
        for name, count in BLOCKS.items():
            assert len(getattr(known, name).filters.filters) == count
    assert sum(BLOCKS.values()) == CHANNELS == deep_patches.CHANNELS
