"""Draws plan_and_statement.png: the demo's plan and its statement, side by side, by Chromium."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; padding: 24px; display: flex; gap: 24px; background: #f4f4f2; }}
pre, iframe {{ margin: 0; background: white; border: 1px solid #ccc; border-radius: 6px; }}
pre {{ padding: 20px; font: 15px/1.4 "DejaVu Sans Mono", monospace;
  width: 51ch; white-space: pre-wrap; }}
iframe {{ flex: 1; height: 620px; }}
</style><pre>$ forethought train --demo

{plan}</pre><iframe src="{statement}" scrolling="no"></iframe>"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, page = Path(folder, "run"), Path(folder, "page.html")
        words = ["forethought", "train", "--demo", "--out", str(run)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        plan = done.stdout.partition("Statement")[0].strip()
        text = PAGE.format(plan=plan, statement=(run / "statement.html").as_uri())
        page.write_text(text, encoding="utf-8")
        picture = Path(__file__).with_suffix(".png")
        chromium = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
        chromium += ["--allow-file-access-from-files", "--window-size=1360,670"]
        subprocess.run([*chromium, f"--screenshot={picture}", page.as_uri()], check=True)


if __name__ == "__main__":
    main()
