"""The ledger's service as a process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``forethought ledger serve`` as a process; its address."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "forethought", "ledger", "serve", str(folder / "books.db")),
            *("--port", "0", "--log", str(folder / "log.jsonl"), *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        assert process.stdout is not None
        address = re.search(r"https?://\S+:\d+", process.stdout.readline())
        assert address is not None
        yield address.group(), process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
