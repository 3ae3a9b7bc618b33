"""Tables to fit, brought to public bounds before either library sees them.

Ranges are declared: those of the instruments, of the data's own description, or of the encoding.
Both libraries get the same rows, the same bound on their norm and the same ranges.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from forethought.estimators import RangeScaler

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Rows inside their bounds and what to predict.

    Args:
        X: shape (n, d). y: whole numbers for classes, else floats. bound: on the norm of a row.
        lowest, highest: of every entry of X.
        target_range: of y; None for classes.
    """

    X: Array
    y: NDArray[np.generic]
    bound: float
    lowest: float = -1.0
    highest: float = 1.0
    target_range: tuple[float, float] | None = None

    @property
    def classes(self) -> list[int]:
        """All labels."""
        return [int(label) for label in np.unique(self.y)]


def _scaled(X: Array, lower: object, upper: object, y: object, **options: object) -> Table:
    scaler = RangeScaler(lower=lower, upper=upper).fit(X)
    return Table(scaler.transform(X), np.asarray(y), scaler.feature_bound_, **options)


def _directions(pixels: Array, y: object, **options: object) -> Table:
    """Rows of length 1: of an image what counts is the picture, not how bright it is."""
    lengths = np.linalg.norm(pixels, axis=1, keepdims=True)
    return Table(pixels / np.maximum(lengths, 1e-9), np.asarray(y), 1.0, 0.0, **options)


def _idx(folder: Path) -> tuple[Array, NDArray[np.int64]]:
    images, labels = [], []
    for part in ("train", "t10k"):
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
            images.append(np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784))
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
            labels.append(np.frombuffer(file.read(), np.uint8, offset=8))
    return np.concatenate(images) / 255.0, np.concatenate(labels).astype(np.int64)


def images(data: Path, name: str) -> Table:
    """All 70,000 images, class 0 against the rest."""
    pixels, labels = _idx(data / name)
    return _directions(pixels, (labels == 0).astype(int))


def ten_digits(data: Path) -> Table:
    """All 70,000 digits, ten classes."""
    return _directions(*_idx(data / "mnist"))


def digit_as_number(data: Path) -> Table:
    """MNIST's digits, read as numbers."""
    pixels, labels = _idx(data / "mnist")
    return _directions(pixels, labels.astype(float), target_range=(0.0, 9.0))


# Numeric columns of KDD Cup '99 (its task description): bytes and durations, counts, shares.
_COUNTS = {22: 511.0, 23: 511.0, 31: 255.0, 32: 255.0}
_SHARES = (24, 25, 26, 27, 28, 29, 30, 33, 34, 35, 36, 37, 38, 39, 40)
_LOGS = {0: 60_000.0, 4: 1e9, 5: 1e9, 9: 100.0, 12: 1000.0}
RECORDS = 70_000


def _kdd(data: Path) -> tuple[Array, NDArray[np.str_]]:
    with gzip.open(data / "kddcup99" / "kddcup.data_10_percent.gz", "rt") as file:
        rows = [line.rstrip(".\n").split(",") for line in file]
    some = np.random.default_rng(0).permutation(len(rows))[:RECORDS]
    chosen = [rows[place] for place in some]
    columns = [
        *(
            np.log1p([float(row[at]) for row in chosen]) / np.log1p(most)
            for at, most in _LOGS.items()
        ),
        *(np.array([float(row[at]) for row in chosen]) / most for at, most in _COUNTS.items()),
        *(np.array([float(row[at]) for row in chosen]) for at in _SHARES),
    ]
    return np.stack(columns, axis=1), np.array([row[-1] for row in chosen])


def kdd(data: Path) -> Table:
    """70,000 connections, attack or normal."""
    X, labels = _kdd(data)
    return _scaled(X, 0.0, 1.0, (labels != "normal").astype(int))


def kdd_count(data: Path) -> Table:
    """Connections to the same service on the host (0 to 255), from the other columns."""
    X, _ = _kdd(data)
    at = len(_LOGS) + list(_COUNTS).index(32)
    return _scaled(np.delete(X, at, axis=1), 0.0, 1.0, 255 * X[:, at], target_range=(0.0, 255.0))


def svmlight(data: Path, name: str, features: int, bound: float, form: str = "rows") -> Table:
    """A file of the LIBSVM collection; ``form`` says how it is brought to its bounds."""
    with gzip.open(data / "libsvm" / f"{name}.gz") as file:
        X, y = datasets.load_svmlight_file(io.BytesIO(file.read()), n_features=features)
    labels = (y == y.max()).astype(int)
    X = X.toarray()
    if form == "directions":
        return _directions(X, labels)
    if form == "scaled":
        return _scaled(X, -1.0, 1.0, labels)
    return Table(X, labels, bound)


def svmguide(data: Path) -> Table:
    """Four measurements of astroparticles, by ranges declared in round numbers."""
    with gzip.open(data / "libsvm" / "svmguide1.gz") as file:
        X, y = datasets.load_svmlight_file(io.BytesIO(file.read()), n_features=4)
    return _scaled(X.toarray(), [0, -200, -1, 0], [300, 600, 1, 200], y.astype(int))


def adult_age(data: Path) -> Table:
    """Age (17 to 90) of the census' people, from years of school, hours, sex and marriage."""
    with gzip.open(data / "uci" / "adult.data.gz", "rt") as file:
        rows = [line.strip().split(", ") for line in file if line.strip()]
    X = np.array(
        [
            (
                float(row[4]) / 16,
                float(row[12]) / 99,
                row[9] == "Male",
                row[5] == "Never-married",
                row[5].startswith("Married"),
                row[5] == "Widowed",
                row[7] == "Own-child",
                row[14] == ">50K",
            )
            for row in rows
        ],
        dtype=float,
    )
    return _scaled(X, 0.0, 1.0, [float(row[0]) for row in rows], target_range=(17.0, 90.0))


IRIS = ([4.0, 2.0, 1.0, 0.0], [8.0, 4.5, 7.0, 2.5])  # centimetres


def _described(description: str, columns: int) -> tuple[list[float], list[float]]:
    """Lowest and highest of the first columns, from the table that the data's description holds."""
    table = description.split("Min ")[1].split("\n")[2:]
    ends = [line.rsplit(":", 1)[1].split()[:2] for line in table[:columns]]
    return [float(low) for low, _ in ends], [float(high) for _, high in ends]


def cancer() -> Table:
    """Breast Cancer Wisconsin (wdbc), by the ranges that its description prints."""
    found = datasets.load_breast_cancer()
    lower, upper = _described(found.DESCR, 30)
    return _scaled(found.data, lower, upper, found.target)


def cancer_area() -> Table:
    """The largest cells' area, from the ten means of wdbc."""
    found = datasets.load_breast_cancer()
    lower, upper = _described(found.DESCR, 30)
    return _scaled(
        found.data[:, :10], lower[:10], upper[:10], found.data[:, 23], target_range=(185.2, 4254.0)
    )


def wine() -> Table:
    """Three vineyards, by the ranges that the data's description prints."""
    found = datasets.load_wine()
    return _scaled(found.data, *_described(found.DESCR, 13), found.target)


def iris() -> Table:
    """Three species."""
    X, y = datasets.load_iris(return_X_y=True)
    return _scaled(X, *IRIS, y)


def iris_width() -> Table:
    """Width of the petal, 0 to 2.5 cm, from the other three."""
    X, _ = datasets.load_iris(return_X_y=True)
    lower, upper = (ends[:3] for ends in IRIS)
    return _scaled(X[:, :3], lower, upper, X[:, 3], target_range=(0.0, 2.5))


def digits() -> Table:
    """Ten digits of 8 × 8 pixels."""
    X, y = datasets.load_digits(return_X_y=True)
    return _directions(X, y)


def diabetes() -> Table:
    """Progression after a year, 25 to 346; columns come scaled, within 0.2."""
    X, y = datasets.load_diabetes(return_X_y=True)
    return _scaled(X, -0.2, 0.2, y, target_range=(25.0, 346.0))


def binary_rows(data: Path, name: str, features: int, ones: int) -> Table:
    """Rows of zeros and ones, at most ``ones`` of them ones."""
    table = svmlight(data, name, features, float(np.sqrt(ones)))
    return Table(table.X, table.y, table.bound, 0.0)


# name → (table, folder or package). Estimators' constants were chosen on DEVELOPMENT alone.
CLASSIFICATION: dict[str, Callable[[Path], Table]] = {
    "MNIST, 0 against rest": lambda data: images(data, "mnist"),
    "MNIST, ten classes": ten_digits,
    "Fashion-MNIST, 0 against rest": lambda data: images(data, "fashion-mnist"),
    "KDD Cup '99, attack": kdd,
    "Adult (a9a)": lambda data: binary_rows(data, "a9a", 123, 14),
    "Breast Cancer (wdbc)": lambda data: cancer(),
    "Iris": lambda data: iris(),
    "digits": lambda data: digits(),
    "wine": lambda data: wine(),
}
REGRESSION: dict[str, Callable[[Path], Table]] = {
    "MNIST, digit as a number": digit_as_number,
    "KDD Cup '99, connections": kdd_count,
    "Adult, age": adult_age,
    "Breast Cancer, area": lambda data: cancer_area(),
    "Iris, petal width": lambda data: iris_width(),
    "diabetes": lambda data: diabetes(),
}
DEVELOPMENT: dict[str, Callable[[Path], Table]] = {
    "phishing": lambda data: svmlight(data, "phishing", 68, 1.0, "directions"),
    "mushrooms": lambda data: binary_rows(data, "mushrooms", 112, 21),
    "svmguide1": svmguide,
    "german": lambda data: svmlight(data, "german.numer_scale", 24, 0, "scaled"),
    "w8a": lambda data: binary_rows(data, "w8a", 300, 114),
}
