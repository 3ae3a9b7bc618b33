"""`forethought keygen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Example: forethought keygen signing.pem"


def keygen(
    path: Annotated[Path, typer.Argument(help="File of the private key; .pub is put beside it.")],
) -> None:
    """Make a key to sign statements with: forethought account RUN --sign FILE."""
    from forethought import signing

    public, fingerprint = signing.generate(path)
    typer.echo(f"private key  {path} (keep it to yourself)")
    typer.echo(f"public key   {public} (give it to those who verify), fingerprint {fingerprint}")
