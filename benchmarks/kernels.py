"""How often the way to a kernel's gradients that is chosen is the slower one, and by how much.

    python benchmarks/kernels.py                                  # half a minute
    python benchmarks/kernels.py --json benchmarks/kernels.json   # and keep the rows
    python benchmarks/kernels.py --print benchmarks/kernels.json

Random shapes of convolutions, small enough that both ways fit: written out for each example, or
ghost norms. Each is timed from recorded inputs and output gradients to the clipped sum, by
processor time on one thread, the least of seven.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import torch

from forethought.gradients import sums

SHAPES, SEED, MOST = 48, 13, 150e6
# Rates at which one way always looks faster.
ALWAYS = {"ghost": sums.Rates(0.0, 0.0, 1.0), "written": sums.Rates(1.0, 1.0, 0.0)}


def shape(draw: random.Random) -> dict[str, int]:
    """Channels, kernel, stride, padding, side of the image and batch."""
    kernel = draw.choice((2, 3, 3, 3, 4, 5))
    return {
        "inner": draw.choice((8, 12, 16, 24, 32, 48, 64, 96, 128, 192)),
        "outer": draw.choice((16, 32, 48, 64, 96, 128, 192, 256)),
        "kernel": kernel,
        "stride": draw.choice((1, 1, 2)),
        "padding": draw.choice((0, kernel // 2)),
        "side": draw.choice((5, 6, 7, 8, 9, 10, 12, 14, 16)),
        "batch": draw.choice((32, 64, 128, 256)),
    }


def measured(given: dict[str, int]) -> dict[str, Any]:
    """The way that is chosen, and the microseconds of an example by each."""
    batch, side, stride = given["batch"], given["side"], given["stride"]
    out = (side + 2 * given["padding"] - given["kernel"]) // stride + 1
    image = torch.randn(batch, given["inner"], side, side)
    gradient = torch.randn(batch, given["outer"], out, out)
    window = sums.Window(*((given[name],) * 2 for name in ("kernel", "stride", "padding")), (1, 1))
    factors, own = torch.rand(batch), sums.CPU
    chosen = sums.Convolved(image, gradient, window).way()
    row: dict[str, Any] = {**given, "chosen": "ghost" if "ghost" in chosen else "written"}
    for way, rates in ALWAYS.items():
        sums.CPU, found = rates, []
        for _ in range(7):
            start, term = time.process_time(), sums.Convolved(image, gradient, window)
            term.bounds()
            term.summed(factors, batch * out * out if way == "ghost" else batch)
            found.append(time.process_time() - start)
        row[way] = round(1e6 * min(found) / batch, 2)
    sums.CPU = own
    return row


def said(rows: list[dict[str, Any]]) -> str:
    """The price of the choices, in a sentence."""
    price = [row[row["chosen"]] / min(row["ghost"], row["written"]) for row in rows]
    ghost = sum(row["chosen"] == "ghost" for row in rows)
    fixed = [max(row[way] / min(row["ghost"], row["written"]) for row in rows) for way in ALWAYS]
    mean = math.exp(sum(map(math.log, price)) / len(price))
    return (
        f"in {len(rows)} random shapes of convolutions the chosen way ({ghost} times ghost) takes "
        f"{mean:.2f} times the better one's time in the geometric mean, {max(price):.1f} at most "
        f"(ghost norms everywhere {fixed[0]:.0f} at most, writing out {fixed[1]:.0f})"
    )


def main() -> None:
    """Measure, or print what was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="keep the rows here")
    parser.add_argument("--smoke", action="store_true", help="two shapes; what CI runs")
    parser.add_argument("--print", type=Path, help="print what these rows say")
    asked = parser.parse_args()
    if asked.print:
        print(said(json.loads(asked.print.read_text("utf-8"))))
        return
    torch.set_num_threads(1)
    draw, rows = random.Random(SEED), list[dict[str, Any]]()
    while len(rows) < (2 if asked.smoke else SHAPES):
        given = shape(draw)
        numbers = given["inner"] * given["outer"] * given["kernel"] ** 2 * given["batch"]
        if 4 * numbers < MOST and given["side"] >= given["kernel"]:
            rows.append(measured(given))
            print(rows[-1], flush=True)
    if asked.json:
        text = ",\n".join(json.dumps(row) for row in rows)
        asked.json.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    print(said(rows))


if __name__ == "__main__":
    main()
