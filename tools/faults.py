"""Trials of what must never happen, in gossips, federations, books; stops at the first violation.

python tools/faults.py federation --seeds 100000             # machines under planted faults
python tools/faults.py gossip --seeds 1000                   # the same of a gossip's workers
python tools/faults.py gossip --liars --seeds 10000          # and one of five lies
python tools/faults.py federation --masks --seeds 10000      # a hostile server over masks
python tools/faults.py gossip --kills 100 --engine ray       # real processes, killed and stopped
python tools/faults.py federation --kills 100 --engine flower
python tools/faults.py ledger --engine postgresql            # 50 writers of one book at once
python tools/faults.py ledger --kills 1000 --engine sqlite   # writers are killed, and the server

The status is 1 where something was violated: the line names the seed that shows it again. With
--json one line of JSON is printed besides.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trials import ViolationError, federation, gossip, masks


def progress(of: int) -> Callable[[int], None]:
    """Tells how many are done, where somebody looks."""
    if not sys.stderr.isatty():
        return lambda done: None
    return lambda done: print(f"\r{done:,} of {of:,} ", end="", file=sys.stderr, flush=True)


def machines(
    run: Callable[..., Any], seeds: int, first: int, counted: dict[str, str], liars: bool
) -> dict[str, Any]:
    """Trials of machines, one a seed.

    Args:
        counted: what of the trials' tally is told: name, and its words.
        liars: whether one member of five, or a federation's server, lies.
    """
    start = time.process_time()
    total = run(first, seeds, progress(seeds), liars)
    if liars:
        counted = {**counted, "lies": "lies"}
    rate = seeds / (time.process_time() - start)
    counts = {name: getattr(total, name) for name in counted}
    told = ", ".join(f"{count:,} {counted[name]}" for name, count in counts.items())
    print(
        f"{seeds:,} trials without a violation: {told}; {rate:.0f} trials a second of processor "
        "time"
    )
    return {**counts, "trials": seeds, "trials_a_second": rate}


def kills(count: int, engine: str, rule: str, compression: str, first: int) -> dict[str, Any]:
    """Trials of real processes."""
    from trials.endings import run_endings
    from trials.kills import run_kills

    if rule == "allreduce":
        ended = run_endings(count, first, report=progress(count))
        print(
            f"{ended.killed} kills and {ended.stopped} stops in {ended.trials} trials, rule "
            f"allreduce, torchrun, without a violation: {ended.ended} gossips ended, every process "
            f"with its reason; {ended.refused} killed workers were refused when they came back; "
            f"{ended.releases:,} releases, {ended.events:,} events played again"
        )
        return {**asdict(ended), "reasons": dict(ended.reasons)}
    found = run_kills(
        count, engine, first, report=progress(count), rule=rule, compression=compression
    )
    print(
        f"{found.killed} kills ({found.together} times two at once) and {found.stopped} stops in "
        f"{found.trials} trials, rule {rule}, {engine}, without a violation: {found.releases:,} "
        f"releases, {found.exchanges:,} exchanges, {found.events:,} events played again; "
        f"{found.returned} lives after a kill released again, {found.alone} workers came back when "
        f"all others had gone; {found.settled} trials had time to agree: final models at most "
        f"{found.apart:.2g} of an update's noise apart"
    )
    return {**asdict(found), "reasons": dict(found.reasons)}


def carried(count: int, engine: str, rule: str, first: int) -> dict[str, Any]:
    """Federations over an engine whose processes are killed, one after the other.

    Each is judged when it ends, and says so: a run that was cut short goes on with the next seed.
    """
    from trials.carriers import BLOWS, ROUNDS, run_carrier

    killed = stopped = trials = 0
    while killed + stopped < count:
        seed, blows = first + trials, min(BLOWS[engine], count - killed - stopped)
        with tempfile.TemporaryDirectory() as folder:
            found = run_carrier(
                engine, rule, Path(folder), seed=seed, rounds=ROUNDS[engine], blows=blows
            )
        killed, stopped, trials = killed + found.killed, stopped + found.stopped, trials + 1
        words = f"seed {seed}: {found.killed} kills and {found.stopped} stops in"
        print(f"{words} {found.seconds:.0f} s; {killed + stopped} of {count}", file=sys.stderr)
    print(
        f"{killed} kills and {stopped} stops in {trials} trials, rule {rule}, {engine}, without a "
        "violation: every update was applied once, every model was the simulation's to the bit"
    )
    return {"killed": killed, "stopped": stopped, "trials": trials, "engine": engine}


def books(count: int, engine: str, first: int, writers: int) -> dict[str, Any]:
    """Many writers of one book at once, or kills of writers and of the server."""
    from trials import ledger

    if count:
        killed = ledger.run_kills(count, engine, first, progress(count))
        print(
            f"{killed.writers} kills of writers and {killed.servers} of the server in "
            f"{killed.trials} books, {engine}, without a violation: {killed.calls:,} calls were "
            f"answered, and {killed.again} said again by whoever came after a killed one"
        )
        return {**asdict(killed), "engine": engine}
    found = ledger.run_contended(engine, writers=writers)
    print(
        f"{found.writers} writers at once, {engine}, without a violation: {found.reservations:,} "
        f"reservations, which is all that fit, and {found.refusals:,} refusals in "
        f"{found.seconds:.0f} s"
    )
    return {**asdict(found), "engine": engine}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("of", choices=("federation", "gossip", "ledger"))
    parser.add_argument("--seeds", type=int, default=1000, help="trials of machines, one a seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--liars", action="store_true", help="one of five lies, or the server")
    parser.add_argument("--masks", action="store_true", help="a federation's hostile server")
    real = parser.add_argument_group("real processes")
    real.add_argument("--kills", type=int, default=0, help="so often is killed or stopped")
    real.add_argument(
        "--engine",
        help="of a gossip: ray (default), sites (gRPC), torchrun (SYNC); of a federation: grpc "
        "(default), flower; of a ledger: sqlite (default), postgresql",
    )
    real.add_argument("--rule", default="asynchronous", help="see rule in a job")
    real.add_argument("--compression", default="none", help="see [gossip] in a job")
    real.add_argument("--writers", type=int, default=50, help="of a ledger, 200 calls each")
    return parser


def main(words: list[str] | None = None) -> int:
    parser = _parser()
    asked = parser.parse_args(words)
    if asked.seeds < 1 or asked.first < 0 or asked.kills < 0:
        parser.error("--seeds is at least 1, --first and --kills at least 0")
    try:
        if asked.of == "ledger":
            from trials import ledger

            engine = asked.engine or "sqlite"
            if engine not in ledger.ENGINES:
                parser.error(f"a ledger's engines are {' and '.join(ledger.ENGINES)}, not {engine}")
            if engine == "postgresql" and (problem := ledger.impossible()):
                parser.error(problem)
            found = books(asked.kills, engine, asked.first, asked.writers)
        elif asked.kills and asked.of == "federation":
            from trials.carriers import ENGINES

            engine = asked.engine or "grpc"
            if engine not in ENGINES:
                parser.error(f"a federation's engines are {' and '.join(ENGINES)}, not {engine}")
            found = carried(asked.kills, engine, asked.rule, asked.first)
        elif asked.kills:
            from trials.processes import possible

            asked.engine = asked.engine or "ray"
            if problem := possible(asked.engine, asked.rule):
                parser.error(problem)
            found = kills(asked.kills, asked.engine, asked.rule, asked.compression, asked.first)
        elif asked.masks:
            counted = {"events": "events", "crashes": "crashes", "attacks": "attempts of its own"}
            counted |= {"opened": "of them opened"}
            found = machines(masks.run_trials, asked.seeds, asked.first, counted, True)
        elif asked.of == "gossip":
            counted = {"events": "events", "crashes": "crashes", "releases": "releases"}
            counted["exchanges"] = "exchanges"
            found = machines(gossip.run_trials, asked.seeds, asked.first, counted, asked.liars)
        else:
            counted = {"events": "events", "crashes": "crashes", "accepted": "updates applied"}
            found = machines(federation.run_trials, asked.seeds, asked.first, counted, asked.liars)
    except ViolationError as error:
        print(f"violated: {error}", file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
