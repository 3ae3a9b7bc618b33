"""`forethought export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from forethought.commands.options import Json, Quiet, UsageError, console_for, print_json

EPILOG = "Example: forethought export runs/patients --onnx patients.onnx"


def export(
    run: Annotated[Path, typer.Argument(help="Run folder of a finished training.")],
    onnx: Annotated[Path, typer.Option(help="Where to write the model, as ONNX.")],
    overwrite: Annotated[bool, typer.Option(help="Replace the file.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a trained model for other systems: one ONNX file, from a table's columns to answers."""
    from forethought.jobs.onnx_export import before, write_onnx
    from forethought.jobs.predict import load

    if onnx.exists() and not overwrite:
        raise UsageError(f"{onnx} exists: give another --onnx, or --overwrite")
    predictor = load(run)
    model, first = write_onnx(predictor, onnx), before(predictor)
    inputs = [value.name for value in model.graph.input]
    outputs = [value.name for value in model.graph.output]
    console_for(quiet or as_json).print(
        f"{onnx}: {', '.join(inputs)} → {', '.join(outputs)}, as forethought.load answers"
    )
    if first:
        console_for(quiet or as_json).print(Text(first["before"]))
    if as_json:
        print_json({"onnx": str(onnx), "inputs": inputs, "outputs": outputs, **first})
