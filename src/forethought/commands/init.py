"""`forethought init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forethought.commands.options import Quiet, UsageError, console_for

EPILOG = "Example: forethought init patients.csv --label died"


def init(
    table: Annotated[
        Path,
        typer.Argument(help="Your table: CSV, Parquet or Excel; or arrays of images: .npz, idx."),
    ],
    label: Annotated[
        list[str] | None,
        typer.Option(help="The column to predict; repeat for several labels of 1 and 0."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The job file to write.")] = Path("job.toml"),
    overwrite: Annotated[bool, typer.Option(help="Replace the file.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a first job file for a table or for images, for you to correct. Reads the file here."""
    from forethought.jobs.init import holds_arrays, job_for, job_for_arrays

    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists: give another --out, or --overwrite")
    arrays = holds_arrays(table)
    if arrays and label:
        raise UsageError("--label is a column of a table: an archive's labels are y or y_train")
    text = job_for_arrays(table) if arrays else job_for(table, label)
    out.write_text(text, encoding="utf-8")
    console = console_for(quiet)
    if arrays:
        console.print(f"{out} is written from the sizes in {table.name}")
        for line in text.splitlines():
            if line.startswith(("features", "# Why", "# Trained")):
                console.print(line, markup=False)
    else:
        console.print(
            f"{out} is written. Its ranges and categories were taken from {table.name}, on this "
            "machine, which no guarantee covers: correct them from what you know, and set "
            "columns_measured = false"
        )
    console.print(f"Then: forethought plan {out}, and forethought train {out}")
