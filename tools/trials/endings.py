"""Trials of SYNC: one of its processes is killed or stopped, and all end, each with its reason.

Under the rule "allreduce" everybody waits for everybody, and nobody can come back: whether all have
a round's mean is in no ledger. So after a kill every other process must end by itself and say why,
the killed one, started again, must be refused with its reason, and must release nothing more. A
stop may end them all in the same way, or nobody: then they come to the end, with equal bits. What
must hold of ledgers, plans and transcripts is as in :mod:`trials.kills`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forethought.exchange.storage import FolderStorage, counted
from forethought.gossip import events as on
from trials.kills import KillTrial
from trials.processes import OUTCOME, REFUSED, prepared
from trials.recorded import event_of

# Rounds of a trial, and after how many of all together the blow falls, at most.
_ROUNDS, _LATEST = 300, 120
_STOPS = 0.3
# What a worker says that was left by another one, and one that comes back.
_LEFT, _BACK = "under the rule 'allreduce' everybody waits", "that was lost cannot come back"


@dataclass
class Endings:
    """What happened in trials of SYNC.

    Args:
        killed, stopped: workers that were. ended: gossips that a blow ended, of these.
        refused: killed workers that were refused when they were started again.
        releases, events: of all; the events were played again.
        reasons: how often each was said, its first words.
    """

    trials: int = 0
    killed: int = 0
    stopped: int = 0
    ended: int = 0
    refused: int = 0
    releases: int = 0
    events: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class EndingTrial(KillTrial):
    """One trial of SYNC with one blow; see the module and :class:`KillTrial`."""

    def end(self) -> Endings:
        """To the end of all workers.

        Raises:
            ViolationError: something that must never happen.
        """
        everybody = range(self.setting.workers)
        blow = self._random.randrange(4, _LATEST)
        victim = self._random.randrange(self.setting.workers)
        found = Endings(trials=1)
        try:
            for me in everybody:
                self._start(me)
            self._until(
                lambda: sum(self._updates(me, math.inf) for me in everybody) >= blow,
                "did not come so far",
            )
            if self._random.random() < _STOPS:
                self._stop(victim)
                found.stopped = 1
            else:
                self._processes[victim].kill()
                self._processes[victim].join()
                found.killed = 1
            others = [me for me in everybody if me != victim or found.stopped]
            words = "did not end by itself when all had lost a worker"
            self._until(lambda: all(self._gone(me) for me in others), words)
            if found.killed:
                before = len(counted(FolderStorage(self.setting.own(victim))))
                self._start(victim)
                self._until(lambda: self._gone(victim), "did not end when it was started again")
                if len(counted(FolderStorage(self.setting.own(victim)))) != before:
                    raise self._violation(f"worker {victim} came back and released")
        finally:
            for process in self._processes:
                if process is not None:
                    process.kill()
                    process.join()
        self._judge_endings(found, victim)
        return found

    def _gone(self, me: int) -> bool:
        return not self._processes[me].is_alive()

    def _judge_endings(self, found: Endings, victim: int) -> None:
        setting, outcomes = self.setting, {}
        for me in range(setting.workers):
            status = self._processes[me].exitcode
            if status not in (0, REFUSED):
                raise self._violation(f"the process of worker {me} failed ({status})")
            outcomes[me] = json.loads((setting.own(me) / OUTCOME).read_text(encoding="utf-8"))
            rounds = counted(FolderStorage(setting.own(me)))
            if len(rounds) > setting.gossip().plan(me).rounds:
                raise self._violation(f"worker {me} made {len(rounds)} updates: beyond its plan")
            found.releases += len(rounds)
        errors = {me: done["error"] for me, done in outcomes.items() if "error" in done}
        found.ended = int(bool(errors))
        if errors and len(errors) < setting.workers:
            raise self._violation(
                f"workers {sorted(outcomes.keys() - errors)} ended without the others"
            )
        if found.killed and not errors:
            raise self._violation(f"all came to the end without worker {victim}")
        for me, error in errors.items():
            back = bool(found.killed) and me == victim
            found.refused += back
            found.reasons[_BACK if back else _LEFT] += 1
            if (_BACK if back else _LEFT) not in error:
                raise self._violation(f"worker {me} ended and said: {error}")
        for me in range(setting.workers):
            self._played_again(me)
        found.events = self.found.events
        self._judge_means()

    def _judge_means(self) -> None:
        """After the same round all have the same bits."""
        means: dict[int, bytes] = {}
        for me in range(self.setting.workers):
            for line in self._log(me, 0)[1:]:
                event = event_of(line.event)
                if isinstance(event, on.Reduced):
                    mean = means.setdefault(event.round, event.vector.tobytes())
                    if mean != event.vector.tobytes():
                        raise self._violation(f"two means of round {event.round}")


def run_endings(
    blows: int, first: int = 0, *, report: Callable[[int], None] | None = None, **changes: Any
) -> Endings:
    """Trials of SYNC under torch.distributed, with one blow each.

    Raises:
        ViolationError: names the seed.
    """
    total = Endings()
    for seed in range(first, first + blows):
        with prepared("torchrun", seed, rounds=_ROUNDS, rule="allreduce", **changes) as setting:
            found = EndingTrial(setting, 1).end()
        for name in ("trials", "killed", "stopped", "ended", "refused", "releases", "events"):
            setattr(total, name, getattr(total, name) + getattr(found, name))
        total.reasons += found.reasons
        if report is not None:
            report(seed + 1 - first)
    return total
