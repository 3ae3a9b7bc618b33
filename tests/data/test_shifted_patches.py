from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.data.test_patches import digest, on_other_machines, pictures

from forethought.data import deep_patches, features
from forethought.data.deep_patches import (
    BLOCKS,
    SHIFTS,
    blocks_of,
    counts_of,
    deep_patch_features,
    evened_components,
    first_filters,
    shifted_patch_features,
)
from forethought.data.patches import GRID, STILL, pooled_at, windows

# Whoever changes the numbers on purpose changes Extractor.kind as well.
BITS = {1: "828be9710842021d", 3: "e133bece87bf3c92"}
SIDE = 24


@pytest.mark.parametrize("channels", [1, 3])
def test_the_bits_are_those_of_every_other_machine(channels):
    assert digest(shifted_patch_features(pictures(channels, 2, SIDE))) == BITS[channels]


@pytest.mark.slow
def test_another_instruction_set_and_other_threads_give_the_same_bits():
    seen = "shifted_patch_features(pictures(c, 2, SIDE), chunk={})"
    for found in on_other_machines(__name__, seen, (1, 2)):
        assert found == [BITS[1], BITS[3]]


def in_the_middle(content: torch.Tensor) -> torch.Tensor:
    """On 44 × 44 black pixels, so that nothing is lost at the edges of a shifted image."""
    images = torch.zeros(len(content), 3, 44, 44)
    images[..., 12:32, 12:32] = content
    return images


@pytest.mark.parametrize("down", [-2, 2])
def test_moved_windows_see_an_image_that_was_really_shifted(down):
    images = in_the_middle(pictures(3, 1, 20))
    expected, found = blocks_of(torch.roll(images, -down, 2)), blocks_of(images, [(down, 0)])
    for name in BLOCKS:
        assert torch.equal(found[name], expected[name])
        assert not torch.equal(found[name], blocks_of(images)[name])


def test_image_and_mirror_image_are_both_moved_the_same_way_across():
    image = in_the_middle(pictures(3, 1, 20))
    shape = (1, 2, deep_patches.FINE**2, 1024)
    filters, sums, expected_sums = first_filters(3), 0, 0
    for across in (-2, 2):
        shifted = torch.roll(image, -across, 3)
        mirrored = torch.roll(image.flip(3), -across, 3)
        found, seen, mirrors = (torch.empty(shape) for _ in range(3))
        sums = sums + pooled_at(image, filters, [(0, across)], found)
        expected_sums = expected_sums + pooled_at(shifted, filters, STILL, seen)
        pooled_at(mirrored, filters, STILL, mirrors)
        assert torch.equal(found[:, 0], seen[:, 0])
        assert torch.equal(found[:, 1], mirrors[:, 0])
    assert torch.equal(sums, expected_sums)


def test_counts_are_averaged_over_places():
    images = pictures(1, 2, SIDE)
    alone = [counts_of(images, [place]) for place in SHIFTS]
    together = counts_of(images, SHIFTS)
    for name, sums in together.items():
        assert torch.equal(sums, sum(counts[name] for counts in alone))
    # The mean of a place twice and another once is nearer to the former.
    still, moved = (blocks_of(images, [place])["second"] for place in SHIFTS[:2])
    twice = blocks_of(images, [SHIFTS[0], SHIFTS[0], SHIFTS[1]])["second"]
    assert (twice - still).norm() < 0.6 * (twice - moved).norm()


def test_neither_chunks_nor_a_mirror_change_a_bit():
    images = pictures(3, 3, SIDE)
    expected = shifted_patch_features(images)
    assert torch.equal(shifted_patch_features(images, chunk=2), expected)
    assert torch.equal(shifted_patch_features(images.flip(-1)), expected)
    rows = expected.flatten(1)
    assert (rows.double().norm(dim=1) <= 1).all()
    assert torch.equal(rows, rows.bfloat16().float())


def test_windows_are_moved_and_cut_off_at_the_edge():
    for positions in range(7, 92, 4):
        for grid in (GRID, deep_patches.FINE):
            still = windows(positions, grid)
            for moved in (-2, -1, 1, 2):
                found = windows(positions, grid, moved)
                assert found.sum(1).max() <= 44
                assert torch.equal(found, windows(positions, grid, -moved).flip(0, 1))
                inside = slice(max(moved, 0), positions + min(moved, 0))
                back = slice(inside.start - moved, inside.stop - moved)
                assert torch.equal(found[:, inside], still[:, back])


def test_they_are_kept_apart_from_those_without_shifts(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETHOUGHT_CACHE", str(tmp_path))
    images = pictures(1, 1, SIDE).numpy()
    shifted = features.cached(images, "shifted-patches")
    plain = features.cached(images, "deep-patches")
    assert not np.array_equal(shifted, plain)
    assert np.array_equal(plain, deep_patch_features(torch.from_numpy(images)).numpy())
    assert len(list((tmp_path / "private").glob("*.npy"))) == 2
    assert np.array_equal(features.cached(images, "shifted-patches"), shifted)


def test_no_place_at_all_is_refused():
    with pytest.raises(ValueError, match="least one place"):
        deep_patch_features(pictures(1, 1, SIDE), places=())
    assert STILL == ((0, 0),)


@pytest.mark.parametrize("channels", [1, 3])
def test_bundled_components_have_their_shapes_and_exact_products(channels):
    known = evened_components(channels)
    plain = deep_patches.components(channels)
    assert list(known) == list(BLOCKS)
    for name, one in known.items():
        assert one.filters.filters.shape == plain[name].filters.filters.shape
        assert 127 * np.abs(one.filters.filters.astype(np.int64)).sum(1).max() < 2**24
        assert np.abs(one.offsets).max() < 2**24


def test_another_evening_out_is_other_features():
    images = pictures(3, 1, SIDE)
    plain = deep_patch_features(images, places=SHIFTS)
    again = deep_patch_features(images, places=SHIFTS, evened_out=deep_patches.components)
    assert torch.equal(plain, again)
    assert not torch.equal(plain, shifted_patch_features(images))
