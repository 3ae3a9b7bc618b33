"""Synthetic data has the shape asked for, is reproducible, and can be learned."""

import numpy as np
import pytest

from forethought.data.synthetic import clusters, images, like


@pytest.mark.parametrize(("shape", "classes"), [((30,), 2), ((1, 28, 28), 10), ((3, 9, 7), 4)])
def test_shape_range_and_classes(shape: tuple[int, ...], classes: int) -> None:
    data = like(shape, classes, 300, test=100)
    assert data.test is not None and data.classes == classes
    assert data.train.inputs.shape == (300, *shape) and data.test.inputs.shape == (100, *shape)
    assert data.train.inputs.dtype == np.float32 and data.train.targets.dtype == np.int64
    assert np.abs(data.train.inputs).max() <= 1
    assert set(data.train.targets) == set(range(classes))
    assert "no real record" in data.notes[0]


def test_same_seed_same_data() -> None:
    one, again, other = (images(50, (1, 12, 12), 3, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.inputs, again.inputs)
    np.testing.assert_array_equal(one.targets, again.targets)
    assert not np.array_equal(one.inputs, other.inputs)


@pytest.mark.parametrize("shape", [(40,), (1, 14, 14)])
def test_classes_can_be_told_apart_and_noise_makes_it_harder(shape: tuple[int, ...]) -> None:
    def accuracy(noise: float) -> float:
        data = like(shape, 3, 600, test=200, noise=noise)
        assert data.test is not None
        train, test = (s.inputs.reshape(len(s), -1) for s in (data.train, data.test))
        distances = ((test[:, None] - train[None]) ** 2).sum(-1)
        return float((data.train.targets[distances.argmin(1)] == data.test.targets).mean())

    easy, hard = accuracy(0.5), accuracy(4.0)
    assert easy > 0.95 and hard < easy - 0.2


def test_smooth_images_have_neighbouring_pixels_alike() -> None:
    plain = images(200, (1, 28, 28), 2, noise=0.0).inputs[:, 0]
    assert np.corrcoef(plain[:, 1:].ravel(), plain[:, :-1].ravel())[0, 1] > 0.9


def test_clusters_confuse_two_classes_as_seldom_as_said() -> None:
    # The best rule between two known centres: at distance 2·3.5 at most, √2·3.5 on average.
    split = clusters(4000, 200, 2, seed=3)
    middle = [split.inputs[split.targets == label].mean(0) for label in (0, 1)]
    nearer = np.stack([((split.inputs - m) ** 2).sum(1) for m in middle]).argmin(0)
    assert (nearer == split.targets).mean() > 0.97


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((28, 28), 10, 100), r"channels, height, width"),
        (((5,), 1, 100), "classes"),
        (((5,), 2, 0), "examples"),
        (((0,), 2, 10), "side"),
    ],
)
def test_bad_wishes_are_refused(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        like(*arguments)  # type: ignore[arg-type]
