"""Table 3 and Figures 1 and 2 of "Adaptive Hyperparameter Selection for DP Gradient Descent".

    python experiments/adaptive_noise/run.py                                  # what is there
    python experiments/adaptive_noise/run.py --data-dir ../shared/data        # what is missing, too
    python experiments/adaptive_noise/run.py --data-dir ../shared/data --smoke --out /tmp/smoke

Every way is repeated 120 times side by side. Results are kept in results.jsonl as they come; a run
that was stopped goes on where it was, and `--minutes` lets none begin after them.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from curves import draw
from sets import PAPER
from table import markdown
from trajectories import Result, from_row, jobs, run, to_row

HERE = Path(__file__).parent


def kept(path: Path, repetitions: int) -> list[Result]:
    """The results of a file, of as many repetitions."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [from_row(row) for row in rows if row["repetitions"] == repetitions]


def main() -> None:
    """Run what is missing; write results.md and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="run what is missing")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--repetitions", type=int, default=120)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600, help="after which no job begins")
    parser.add_argument("--smoke", action="store_true", help="two small data sets, 8 repetitions")
    given = parser.parse_args()
    names = ("synthetic", "iris") if given.smoke else PAPER
    repetitions = 8 if given.smoke else given.repetitions
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.jsonl"
    results = kept(path, repetitions)
    have = {result.job for result in results}
    left = [job for job in jobs(names) if job not in have] if given.data_dir else []
    begun = time.time()
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        running: set[Future[Result]] = set()
        while running or left:
            while left and len(running) < given.processes:
                running.add(pool.submit(run, left.pop(0), given.data_dir, repetitions))
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                results.append(future.result())
                with path.open("a") as file:
                    file.write(json.dumps(to_row(results[-1], repetitions)) + "\n")
                print(f"{time.time() - begun:6.0f} s  {results[-1].job}", flush=True)
            if time.time() - begun > 60 * given.minutes and left:
                print(f"{len(left)} jobs are left")
                left = []
    text = markdown(results, repetitions)
    (given.out / "results.md").write_text(text, encoding="utf-8")
    draw(results, given.out)
    print(text)
    print(f"{sum(result.seconds for result in results):.0f} s of processor time")


if __name__ == "__main__":
    main()
