"""`forethought ui`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forethought.commands.options import DataDir, JobFile, Quiet, UsageError, console_for

EPILOG = "Example: forethought ui job.toml"


def ui(
    job_file: JobFile = None,
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0: any that is free.", min=0)] = 0,
    folder: Annotated[Path, typer.Option(help="Where plans and jobs are saved.")] = Path(),
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Plan in a browser, on this machine alone: sliders, and what follows from them."""
    from forethought.web.server import PlannerServer, beginning

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: make it first, or give another --folder")
    place, start = beginning(job_file, folder, data_dir)
    server = PlannerServer(place, start, port)
    console = console_for(quiet)
    # Not opened by itself: what a browser is started with, other people here can see.
    console.print(f"Open this address in your browser; it is for you alone:\n{server.address}")
    console.print("Ctrl-C ends it.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
