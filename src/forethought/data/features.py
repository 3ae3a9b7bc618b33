"""Fixed features of a whole data set of images, computed once and cached on disk."""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from forethought.data import deep_patches, patches
from forethought.data.dataset import Dataset, usual_norm_of_pixels
from forethought.data.deep_patches import deep_patch_features, shifted_patch_features
from forethought.data.files import DataError, cache_folder, keep_array, kept_array
from forethought.data.handwriting import deskewed, handwriting_features
from forethought.data.patches import GRID, LEAST, MOST, patch_features
from forethought.data.scattering import (
    ANGLES,
    GROUP,
    POWER,
    RIDGE,
    SCALES,
    SEED,
    scattering_features,
    shape_of,
)
from forethought.values.caveats import Caveat
from forethought.values.serialisation import write_secret

PRIVATE, _KEY, _KEY_BYTES = "private", "key", 32

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Extractor:
    """A fixed map from images to features, computed for each image separately.

    Args:
        name: of the features, as ``load`` takes it.
        kind: changed whenever the features change, so that old cache files are not used.
        words, needs, note: for the caveat on the cache, for errors, and for the data's notes.
        suits: True if images of a shape have these features.
        shape: the shape of the features of images of a shape.
        compute: the map, float32 to float32.
        usual_norm: usual norm of features of a shape.
        halved: True if every feature is a bfloat16, and is stored as one.
    """

    name: str
    kind: str
    words: str
    needs: str
    note: str
    suits: Callable[[Shape], bool]
    shape: Callable[[Shape], Shape]
    compute: Callable[[torch.Tensor], torch.Tensor]
    usual_norm: Callable[[Shape], float] = lambda shape: 1.0
    halved: bool = True

    @property
    def caveat(self) -> Caveat:
        """The caveat that features are stored on disk, and where."""
        return Caveat(
            "cached-features",
            f"{self.words}, in the user's cache folder or in FORETHOUGHT_CACHE (off keeps none), "
            "under names that say nothing without the key in it",
        )


def _grey(shape: Shape) -> bool:
    return patches.suits(shape) and shape[1] == 1


def _on_grid(count: int) -> Callable[[Shape], Shape]:
    return lambda shape: (shape[0], count, GRID, GRID)


_ALONE = "each example normalised by itself"
_COEFFICIENTS = f"scattering coefficients (J={SCALES}, L={ANGLES}), {_ALONE}"
_LEARNT = "filters and constants were learnt from synthetic shapes"
_SIDE = f"{MOST} pixels a side"
_POOLED = f"pooled, {_ALONE}, then decorrelated"

EXTRACTORS = {
    row.name: row
    for row in (
        Extractor(
            "scattering",
            f"scattering/3 J={SCALES} L={ANGLES} group={GROUP} strokes={SEED} {RIDGE} {POWER}",
            "scattering coefficients",
            f"scattering needs images (N, C, H, W) of more than {2**SCALES} pixels a side",
            f"inputs replaced by {_COEFFICIENTS} in groups of {GROUP} channels, then decorrelated "
            "by constants computed on synthetic strokes",
            lambda shape: len(shape) == 4 and min(shape[2:]) > 2**SCALES,
            shape_of,
            lambda images: scattering_features(images),
            # The value on synthetic strokes: decorrelated channels have a deviation near 1.
            lambda shape: 0.75 * math.sqrt(math.prod(shape[1:])),
            halved=False,
        ),
        Extractor(
            "patches",
            "patches/1",
            "patch features",
            f"patches need images (N, 1 or 3, H, W) of {LEAST} to {_SIDE}",
            f"inputs replaced by patch features: responses to fixed filters, {_POOLED}; {_LEARNT}",
            patches.suits,
            _on_grid(patches.CHANNELS),
            lambda images: patch_features(images),
        ),
        Extractor(
            "deep-patches",
            "deep-patches/2",
            "deep patch features",
            f"deep patches need images (N, 1 or 3, H, W) of {deep_patches.LEAST} to {_SIDE}",
            "inputs replaced by deep patch features: responses to two layers of fixed filters at "
            f"two scales, {_POOLED}; {_LEARNT}",
            deep_patches.suits,
            _on_grid(deep_patches.CHANNELS),
            lambda images: deep_patch_features(images),
        ),
        Extractor(
            "shifted-patches",
            "shifted-patches/1",
            "shifted patch features",
            f"shifted patches need images (N, 1 or 3, H, W) of {deep_patches.LEAST} to {_SIDE}",
            "inputs replaced by deep patch features, averaged over the image and four shifts of it "
            f"by two pixels and evened out; {_LEARNT}",
            deep_patches.suits,
            _on_grid(deep_patches.CHANNELS),
            lambda images: shifted_patch_features(images),
        ),
        Extractor(
            "deskewed",
            "deskewed/2",
            "deskewed images",
            f"deskewing needs grey images (N, 1, H, W) of {LEAST} to {_SIDE}",
            "images deskewed, each by its own moments",
            _grey,
            lambda shape: shape,
            deskewed,
            usual_norm_of_pixels,
            halved=False,
        ),
        Extractor(
            "handwriting",
            "handwriting/2",
            "scattering coefficients of deskewed images",
            f"handwriting needs grey images (N, 1, H, W) of {LEAST} to {_SIDE}",
            f"inputs deskewed, each by its own moments, and replaced by {_COEFFICIENTS}, then "
            "evened out by constants computed on drawings of a random pen",
            _grey,
            shape_of,
            handwriting_features,
        ),
    )
}


def best_features(shape: Shape) -> str | None:
    """The features that ``"auto"`` chooses for images of this shape; None: images stay as they are.

    Only the shape decides, so no record does. On held-out training images, patches were far better
    in colour, and deep patches, which need at least 20 pixels a side, better still. In grey,
    patches lost as much on digits as they won on clothes, counted in errors even more, so grey
    images get scattering (experiments/patches/README.md). Smaller and larger images were not
    measured.

    Args:
        shape: of all inputs: (N, channels, H, W), or another shape if they are no images.
    """
    if not EXTRACTORS["patches"].suits(shape):
        return None
    if shape[1] != 3:
        return "scattering"
    return "deep-patches" if deep_patches.suits(shape) else "patches"


def reason_for(name: str) -> str:
    """The reason for ``"auto"``'s choice of these features, in one line for readers of a plan."""
    model = "a linear model on fixed features learns more through the noise than one on pixels"
    if name == "patches":
        return f"{model}; of those measured the best for colour images so small"
    if name == "deep-patches":
        return f"{model}; of those measured the best for colour"
    return f'{model}; for grey drawings and digits. For grey photographs try "patches"'


def with_features(dataset: Dataset, name: str) -> Dataset:
    """The data set with images replaced by fixed features.

    Each example is transformed separately, with constants only, so this costs no privacy.

    Args:
        name: ``"scattering"``: normalised, decorrelated scattering coefficients, (N, 81·C, H/4,
            W/4); ``"patches"``: :mod:`forethought.data.patches`, (N, 1024, 4, 4);
            ``"deep-patches"``: :mod:`forethought.data.deep_patches`, (N, 1280, 4, 4);
            ``"shifted-patches"``: those averaged over shifts of the image and evened out;
            ``"handwriting"``: scattering of deskewed grey images, of norm 1, (N, 81, H/4, W/4);
            or ``"deskewed"``: the grey images themselves, set upright and centred.

    Raises:
        DataError: the inputs are not images, or not of a size that these features take.
    """
    extractor = _extractor(name)
    shape = dataset.train.inputs.shape
    for part in (dataset.train, dataset.test):
        if part is not None:
            _require_images(dataset.name, part.inputs, extractor)
    stored = () if cache_folder() is None else (extractor.caveat,)
    return dataset.with_inputs(
        lambda inputs: cached(inputs, name),
        notes=(*dataset.notes, extractor.note),
        caveats=(*dataset.caveats, *stored),
        feature_norm=extractor.usual_norm(extractor.shape(shape)),
        fixed_features=name,
        image_shape=tuple(shape[1:]),
    )


def _require_images(source: str, images: NDArray[np.float32], extractor: Extractor) -> None:
    """Refuse other shapes, and pixels far from [0, 1], such as bytes as floats: these are clipped.

    Scattering clips nothing.
    """
    if not extractor.suits(images.shape):
        raise DataError(f"{source}: {extractor.needs}, not inputs of shape {images.shape}")
    if extractor.name == "scattering" or not images.size:
        return
    if not (images.min() >= -1 and images.max() <= 2):
        raise DataError(
            f"{source}: found pixels from {images.min():.4g} to {images.max():.4g}, expected 0 to "
            "1: divide by 255, or leave out what was subtracted"
        )


def _extractor(name: str) -> Extractor:
    if name not in EXTRACTORS:
        raise DataError(
            f"features of images are one of {', '.join(map(repr, EXTRACTORS))}, not {name!r}"
        )
    return EXTRACTORS[name]


def features_of(images: ArrayLike | torch.Tensor, name: str) -> NDArray[np.float32]:
    """Features of ``images``, without a cache.

    Args:
        images: (N, channels, height, width) in [0, 1], or bytes from 0 to 255.
        name: as for :func:`with_features`.

    Raises:
        DataError: no such features, no images, or not of a size that these features take.
    """
    extractor = _extractor(name)
    if isinstance(images, torch.Tensor):
        whole = images.dtype == torch.uint8
        images = (images if whole else images.float()).numpy(force=True)
    given = np.asarray(images)
    if not (np.issubdtype(given.dtype, np.number) and np.isrealobj(given)):
        raise DataError(f"images are numbers in [0, 1], not of dtype {given.dtype}")
    pixels = np.ascontiguousarray(given, np.float32)
    if given.dtype == np.uint8:
        pixels = pixels / np.float32(255)
    _require_images("images", pixels, extractor)
    return extractor.compute(torch.from_numpy(pixels)).numpy()


def cached(images: NDArray[np.float32], name: str = "scattering") -> NDArray[np.float32]:
    """Features of ``images`` from the cache; computed and stored if they are not there.

    They are stored in a separate folder, readable by its owner only. File names are hashes with a
    key stored there, so that a name reveals nothing about the images. A truncated or damaged file
    is computed again. If the cache folder cannot be written, the features are returned without an
    error.
    """
    extractor = EXTRACTORS[name]
    images = np.ascontiguousarray(images, np.float32)
    path = _path_of(images, extractor)
    kind = np.uint16 if extractor.halved else np.float32
    known = None if path is None else kept_array(path, kind, extractor.shape(images.shape))
    if known is not None:
        return _widened(known) if extractor.halved else known
    features = extractor.compute(torch.from_numpy(images)).numpy()
    if path is not None:
        keep_array(path, _halved(features) if extractor.halved else features)
    return features


def _halved(features: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Numbers whose lower halves are zero as bfloat16, which NumPy lacks: their upper halves."""
    return torch.from_numpy(features).bfloat16().view(torch.int16).numpy().view(np.uint16)


def _widened(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    return torch.from_numpy(halves.view(np.int16)).view(torch.bfloat16).float().numpy()


def _path_of(images: NDArray[np.float32], extractor: Extractor) -> Path | None:
    """The cache path of the features of these images; None without a usable cache folder."""
    folder = cache_folder()
    key = None if folder is None else _cache_key(folder / PRIVATE)
    if folder is None or key is None:
        return None
    description = repr((extractor.kind, images.shape)).encode()
    digest = hashlib.blake2b(description, key=key, digest_size=16)
    digest.update(images.data)
    return folder / PRIVATE / f"{extractor.name}-{digest.hexdigest()}.npy"


def _cache_key(folder: Path) -> bytes | None:
    """The key in an owner-only folder; both are made on first use. None if this fails."""
    path = folder / _KEY
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        with contextlib.suppress(FileExistsError):
            write_secret(path, secrets.token_bytes(_KEY_BYTES))
        key = path.read_bytes()
    except OSError:
        return None
    return key if len(key) == _KEY_BYTES else None
