"""Table 3 and Figures 1 and 2 of "Adaptive Hyperparameter Selection for DP Gradient Descent".

    python experiments/adaptive_noise/run.py --data-dir ../shared/data     # both, into this folder
    python experiments/adaptive_noise/run.py --data-dir ../shared/data --smoke

Every way is repeated 120 times side by side; two processes of one thread each share the work.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from curves import draw
from sets import PAPER
from table import markdown
from trajectories import Result, jobs, run

HERE = Path(__file__).parent


def main() -> None:
    """Run everything and write results.md and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--repetitions", type=int, default=120)
    parser.add_argument(
        "--large-repetitions",
        type=int,
        help="of MNIST and KDD, fewer where processors are busy; default: the same",
    )
    parser.add_argument("--cache", type=Path, help="where results are kept, to go on later")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600, help="after which no job begins")
    parser.add_argument("--smoke", action="store_true", help="two small data sets, 8 repetitions")
    given = parser.parse_args()
    names = ("synthetic", "iris") if given.smoke else PAPER
    repetitions = 8 if given.smoke else given.repetitions
    begun = time.time()
    results: list[Result] = []
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        large = given.large_repetitions or repetitions
        count = dict.fromkeys(("mnist", "kdd"), large)
        futures = [
            pool.submit(run, job, given.data_dir, count.get(job.name, repetitions), given.cache)
            for job in jobs(names)
        ]
        try:
            for future in as_completed(futures, timeout=60 * given.minutes):
                results.append(future.result())
                done = results[-1].job
                passed = time.time() - begun
                print(f"{passed:6.0f} s  {len(results)}/{len(futures)}  {done}", flush=True)
        except TimeoutError:
            print(f"{len(futures) - len(results)} jobs were left out", flush=True)
            pool.shutdown(wait=False, cancel_futures=True)
    given.out.mkdir(parents=True, exist_ok=True)
    text = markdown(results, repetitions, large)
    (given.out / "results.md").write_text(text, encoding="utf-8")
    draw(results, given.out)
    print(text)
    used = sum(result.seconds for result in results)
    passed = time.time() - begun
    print(f"{used:.0f} s of processor time, {passed:.0f} s with {given.processes} processes")


if __name__ == "__main__":
    main()
