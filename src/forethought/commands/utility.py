"""`forethought utility`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from forethought.commands.options import (
    DataDir,
    Figures,
    JobFile,
    Json,
    PublicProxy,
    Quiet,
    UsageError,
    console_for,
    print_json,
)

EPILOG = "Example: forethought utility job.toml --public-proxy fashion-mnist --save graph.json"


def utility(
    job_file: JobFile,
    public_proxy: PublicProxy = None,
    leaks: Annotated[
        str | None, typer.Option(help="'accept' allows the job's own, private data.")
    ] = None,
    clip_norm: Annotated[list[float] | None, typer.Option(help="C to try; repeatable.")] = None,
    noise_multiplier: Annotated[
        list[float] | None, typer.Option(help="σ to try; repeatable.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Perturbations of every model.")] = 20,
    batch: Annotated[int, typer.Option(help="Expected batch size.")] = 128,
    epochs: Annotated[float, typer.Option(help="Length of each training.")] = 5,
    noise_scale: Annotated[
        str,
        typer.Option(
            help="What σ is the noise of: weights (C σ), round (η₀ C σ), holders-round "
            "(√holders η₀ C σ) or run (√rounds η₀ C σ), η₀ the step size over the batch; or a "
            "number of times C σ."
        ),
    ] = "weights",
    holders: Annotated[int, typer.Option(help="Of holders-round.")] = 1,
    tolerance: Annotated[float, typer.Option(help="Share of accuracy that may be lost.")] = 0.1,
    save: Annotated[Path | None, typer.Option(help="Write the graph here.")] = None,
    figure: Figures = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """See how much noise the job's model bears at each clip norm, on data that costs nothing."""
    from forethought.jobs.holders import UTILITY_GRID, utility_of
    from forethought.jobs.load import load_job
    from forethought.jobs.request import from_file
    from forethought.report import terminal
    from forethought.report.figures import draw_utility

    loaded = load_job(from_file(job_file or Path()), data_dir)
    loaded.require_rows("a utility graph")
    console = console_for(quiet or as_json)
    settings: dict[str, Any] = {"draws": draws, "batch": batch, "epochs": epochs}
    scale: float | str = noise_scale
    with contextlib.suppress(ValueError):  # a name
        scale = float(noise_scale)
    settings |= {"noise_scale": scale, "holders": holders}
    grids = {"clip_norms": clip_norm, "noise_multipliers": noise_multiplier}
    settings |= {name: grid or list(UTILITY_GRID[name]) for name, grid in grids.items()}
    if leaks not in (None, "accept"):
        raise UsageError(f"--leaks knows only 'accept', not {leaks!r}")
    with terminal.counting(console, "Measuring", 0) as progress:
        graph = utility_of(
            loaded, public_proxy, settings, data_dir, leaks=leaks is not None, progress=progress
        )
    if save is not None:
        graph.save(save)
    if figure is not None:
        for path in draw_utility(graph, figure, tolerance):
            console.print(f"figure  {path}")
    if as_json:
        print_json(graph.to_dict())
    else:
        terminal.show_utility(console, graph, tolerance)
