"""The command line: its commands, its exit status, its one-line errors. No logic of its own.

Exit status: 0 done, 1 failed, 2 bad usage or a request that cannot be fulfilled, 130 interrupted
and resumable.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer
from rich.console import Console

from forethought.commands import (
    account,
    audit,
    calculator,
    holders,
    init,
    plan,
    predict,
    report,
    train,
    ui,
    utility,
)
from forethought.commands.options import fail, of_the_system

app = typer.Typer(
    name="forethought",
    help="Private training you plan before you run: plan → train → account.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    (init.init, init.EPILOG),
    (plan.plan, plan.EPILOG),
    (train.train, train.EPILOG),
    (predict.predict, predict.EPILOG),
    (predict.export, predict.EXPORT_EPILOG),
    (account.account, account.EPILOG),
    (audit.audit, audit.EPILOG),
    (report.report, report.EPILOG),
    (train.tune, train.TUNE_EPILOG),
    (ui.ui, ui.EPILOG),
    (utility.utility, utility.EPILOG),
    (calculator.calculator, calculator.EPILOG),
    (account.keygen, account.KEYGEN_EPILOG),
):
    app.command(epilog=command[1])(command[0])
app.add_typer(holders.federate)
app.add_typer(holders.gossip)


def _version(wanted: bool) -> None:
    if wanted:
        from forethought import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def _show_warning(message: Warning | str, *_where: object) -> None:
    Console(stderr=True).print("[yellow]warning[/yellow]", end=": ")
    print(message, file=sys.stderr)


def main() -> None:
    """Entry point: every expected failure is one clear line and an exit status."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            app()
    except ValueError as error:
        raise SystemExit(fail(error, 2)) from None
    except OSError as error:
        raise SystemExit(fail(of_the_system(error), 1)) from None


if __name__ == "__main__":
    main()
