"""The command line: its commands, its exit status and its one-line errors.

Exit status: 0 done, 1 failed, 2 bad usage or a request that cannot be fulfilled, 130 interrupted
and resumable.
"""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated

import typer

from forethought.commands import account, holders, ledger, plan, train
from forethought.commands.command import app, fail, of_the_system, say

# The commands in the order of ``--help``.
COMMANDS: tuple[object, ...] = (
    *(plan.init, plan.plan, plan.compare, train.train, train.release, train.predict, train.export),
    *(account.account, account.audit, account.report_run, train.tune),
    *(plan.ui, plan.utility, plan.calculator, plan.papers, account.keygen),
)
app.registered_commands.sort(key=lambda command: COMMANDS.index(command.callback))
app.add_typer(holders.federate)
app.add_typer(holders.gossip)
app.add_typer(ledger.ledger)
# How Python handles what an output cannot encode, where nobody chose; the second in locale C.
_DEFAULTS = ("strict", "surrogateescape")


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


def main() -> None:
    """Run the command line; an expected failure prints one line and gives an exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in _DEFAULTS:
        # A pipe may have an encoding without ε: what was paid for must not end in an error. What
        # somebody chose (PYTHONIOENCODING) stays.
        sys.stdout.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda text, *_: say("warning", "yellow", text)
            app()
    except KeyboardInterrupt:  # before a command has begun
        raise SystemExit(130) from None
    except ValueError as error:
        raise SystemExit(fail(error, 2)) from None
    except OverflowError as error:  # such as 1e308, of an option that has no largest value
        words = f"a number is too large to compute with ({error.args[-1]}): give a smaller one"
        raise SystemExit(fail(words, 2)) from None
    except RuntimeError as error:
        if not type(error).__module__.startswith("forethought."):
            raise  # a mistake in a program
        raise SystemExit(fail(error, 1)) from None
    except OSError as error:
        raise SystemExit(fail(of_the_system(error), 1)) from None
