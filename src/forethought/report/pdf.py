"""A page on paper: printed to PDF by a browser of this machine, without a window or a network.

The pages are HTML with a style for paper. A browser lays them out as people see them, and most
machines have one; a second layout engine would be a large dependency that draws them otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "brave-browser",
)
_SECONDS = 180
_QUIET = ("sync", "background-networking", "component-update", "default-apps", "extensions", "gpu")


class PrintingError(ValueError):
    """A page that cannot be printed here; says what to do instead."""


def browser() -> str | None:
    """A browser that prints by itself; None: there is none on the path."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def print_pdf(page: Path, pdf: Path) -> Path:
    """Print a page of HTML to a PDF beside whatever is there, which it takes the place of.

    Raises:
        PrintingError: no browser, or one that fails.
    """
    program = browser()
    if program is None:
        raise PrintingError(
            f"no browser found that prints by itself (looked for {', '.join(BROWSERS[:3])}, …): "
            f"install chromium, or open {page} in yours and print it to a file"
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "page.pdf"
        command = [
            program,
            "--headless",
            # Chromium's own sandbox does not start for root, as in a container.
            *(["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []),
            "--no-first-run",
            *(f"--disable-{name}" for name in _QUIET),
            "--host-resolver-rules=MAP * ~NOTFOUND",  # a page of this library asks for nothing
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={made}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise PrintingError(f"{program} did not print {page} in {_SECONDS} seconds") from None
        if done.returncode or not made.is_file() or not made.read_bytes().startswith(b"%PDF"):
            raise PrintingError(
                f"{program} could not print {page}: open it in a browser and print it to a file"
            )
        part = pdf.with_name(f".{pdf.name}.part")
        shutil.copyfile(made, part)
        part.replace(pdf)
    return pdf
