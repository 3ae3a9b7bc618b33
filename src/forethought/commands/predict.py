"""`forethought predict` and `forethought export`: a trained model's answers, here or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from forethought.commands.options import Json, Quiet, UsageError, console_for, print_json

EPILOG = "Example: forethought predict runs/patients new.csv --out predictions.csv"
EXPORT_EPILOG = "Example: forethought export runs/patients --onnx patients.onnx"


def predict(
    run: Annotated[Path, typer.Argument(help="Run folder of a finished training.")],
    table: Annotated[
        Path, typer.Argument(help="New records: CSV, Parquet, Excel; images: .npy, .npz.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write, as CSV.")] = Path("predictions.csv"),
    overwrite: Annotated[bool, typer.Option(help="Replace the file.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Apply a trained model to new records: a prediction and probabilities for each row."""
    from forethought.jobs.predict import load

    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists: give another --out, or --overwrite")
    predictor = load(run)
    rows = predictor.predict_file(table, out)
    classes = predictor.classes
    console_for(quiet or as_json).print(f"{rows} predictions in {out}")
    if as_json:
        print_json(
            {
                "out": str(out),
                "rows": rows,
                "classes": None if classes is None else list(classes),
                "epsilon": predictor.statement.epsilon.upper,
            }
        )


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
