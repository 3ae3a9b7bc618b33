"""Trials of real processes: workers are killed and stopped at random moments, and come back.

A trial is one small gossip over a real engine. At seeded random moments one of its workers, now
and then two, is killed (SIGKILL) and started again, or stopped (SIGSTOP) for a while. After every
blow the others must go on; at the end everything is judged:

- no ledger has more rounds than its worker's plan, nor its statement other ones than the ledger;
- no neighbour ever heard of a release that the ledger of its worker does not have;
- every worker came back and ended; whoever ended with the others agrees with them, up to the noise
  of one update (asynchronous rule), or to the last bit with a gossip that nobody disturbed (the
  rules that wait);
- what every process did is what a simulation does on the same events, and whatever was received is
  what another one sent: the transcripts are equal.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forethought.exchange.messages import encode
from forethought.exchange.storage import FolderStorage, counted
from forethought.gossip import events as on
from forethought.holders.simulator import worker
from trials import ViolationError
from trials.actors import BEGIN, ActorProcess
from trials.processes import (
    EVENTS,
    OUTCOME,
    PACE,
    Line,
    Setting,
    Watch,
    begun_of,
    lines_of,
    live,
    prepared,
)
from trials.recorded import Recorded, event_of

# Seconds in which all end, once nobody is hindered any more.
_END = 240.0
# Updates of everybody for each blow, and for the calm at the end.
_ROUNDS, _LAST_ROUNDS = 70, 300
# The same of the rules that wait, in which nobody does the work of those who are away.
_WAITING_ROUNDS = 40
# Chances: of two blows at once, of a stop in place of a kill, of a start right after a kill, and of
# a trial with blows up to the end, in which those who are hit last cannot agree with the others.
_TOGETHER, _STOPS, _AT_ONCE, _LATE = 0.15, 0.3, 0.4, 0.25
# Events after which a worker that was started is back.
_BACK = 8
# Models must agree after so many seconds in which everybody is back, since until then some take a
# neighbour for lost that others have met again, and after so many exchanges of each in them.
_CALM, _CALM_EXCHANGES = 3 * PACE.patience, 50


@dataclass
class Blows:
    """What happened in trials.

    Args:
        killed, stopped: workers that were. together: kills of two at once.
        returned: lives after a kill that released again. alone: workers that came back to nobody.
        releases, exchanges: of all. events: that were played again.
        settled: trials that had time to agree, or of a rule that waits. apart: the largest
            distance of a final model from the average in these, in updates' noise.
        reasons: why workers ended.
    """

    trials: int = 0
    killed: int = 0
    stopped: int = 0
    together: int = 0
    returned: int = 0
    alone: int = 0
    releases: int = 0
    exchanges: int = 0
    events: int = 0
    settled: int = 0
    apart: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


class KillTrial:
    """One trial; its workers are processes of this machine, and end with it.

    Args:
        setting: see there; its folder exists and is empty.
        blows: how many kills and stops, at most: a gossip may end before.
        watch: puts something into every worker's process; tests put planted faults here.
        patience: seconds in which a worker that nobody hindered must have done something.
        undisturbed: each worker's final model where nobody was hindered, of the rules that wait.

    Attributes:
        found: what happened so far. models: each worker's final one, of those that ended.
    """

    def __init__(
        self,
        setting: Setting,
        blows: int,
        watch: Watch | None = None,
        patience: float = 60.0,
        undisturbed: Mapping[int, Any] | None = None,
    ) -> None:
        self._undisturbed = undisturbed
        self.models: dict[int, Any] = {}
        self._patience = patience
        self.setting, self.found = setting, Blows(trials=1)
        self._blows, self._watch = blows, watch
        self._random = random.Random(f"kills {setting.seed}")
        self._context = multiprocessing.get_context("forkserver")
        # Loaded once, so that a worker that is started again costs milliseconds; optimizers load
        # the last one. The server of forks sees what is installed, and not this folder.
        self._context.set_forkserver_preload(
            [
                *("forethought.holders.taking_part", "forethought.holders.grpc"),
                *("forethought.rounds.contributions", "torch._dynamo"),
            ]
        )
        self._lives = [0] * setting.workers
        self._processes: list[Any] = [None] * setting.workers
        self._calm_since = math.inf
        self._late = self._random.random() < _LATE

    def run(self) -> Blows:
        """To the end of all workers.

        Raises:
            ViolationError: something that must never happen.
        """
        everybody = range(self.setting.workers)
        try:
            for me in everybody:
                self._start(me)
            self._until(
                lambda: all(self._last(me) is not None for me in everybody), "did not begin", BEGIN
            )
            while self._blows > 0 and not self._near_the_end():
                time.sleep(self._random.uniform(0.0, 0.4))
                self._blow()
            self._until(lambda: not any(self._alive(me) for me in everybody), "did not end", _END)
        finally:
            for process in self._processes:
                if process is not None:
                    process.kill()
                    process.join()
        self._judge()
        return self.found

    # ---- blows

    def _start(self, me: int) -> None:
        life, self._lives[me] = self._lives[me], self._lives[me] + 1
        (self.setting.own(me) / OUTCOME).unlink(missing_ok=True)
        what = (self.setting, me, life, self._watch)
        process: Any
        if self.setting.engine == "ray":
            process = ActorProcess(self.setting.folder.name, me, live, what)
        else:
            process = self._context.Process(target=live, args=what, daemon=True)
        process.start()
        self._processes[me] = process

    def _near_the_end(self) -> bool:
        """Whether nobody is to be hindered any more, so that all can come to agree."""
        everybody = range(self.setting.workers)
        done = sum(self._updates(me, math.inf) for me in everybody)
        calm = 0 if self._late or self.setting.rule != "asynchronous" else _LAST_ROUNDS
        most = (self.setting.rounds - calm) * self.setting.workers
        return done >= most or any(map(self._ended, everybody))

    def _blow(self) -> None:
        draw = self._random
        there = [me for me in range(self.setting.workers) if self._at_work(me)]
        most = len(there) - 2  # who is alone cannot agree with anybody
        if most < 1:
            return
        victims = draw.sample(there, 2 if most > 1 and draw.random() < _TOGETHER else 1)
        if draw.random() < _STOPS:
            victims = victims[:1]
            self._stop(victims[0])
        else:
            self._kill(victims)
        self._blows -= len(victims)
        self._calm_since = time.monotonic()

    def _kill(self, victims: Sequence[int]) -> None:
        for me in victims:
            self._processes[me].kill()
        for me in victims:
            self._processes[me].join()
        self.found.killed += len(victims)
        self.found.together += len(victims) > 1
        begin = time.monotonic()
        if self._random.random() >= _AT_ONCE:
            self._others_go_on(victims, begin)
            time.sleep(self._random.uniform(0.0, 0.5))
        for me in victims:
            self._start(me)
        self._others_go_on(victims, begin)

    def _stop(self, victim: int) -> None:
        process = self._processes[victim]
        begin = time.monotonic()
        os.kill(process.pid, signal.SIGSTOP)
        self.found.stopped += 1
        try:
            time.sleep(self._random.uniform(0.0, 2 * PACE.patience))
            self._others_go_on((victim,), begin)
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def _others_go_on(self, victims: Sequence[int], begin: float) -> None:
        """Every other worker began exchanges and released after ``begin``, or is done."""
        if self.setting.rule != "asynchronous":
            return
        most = self.setting.gossip().updates(0)
        before = {me: self._updates(me, begin) for me in range(self.setting.workers)}
        others = [me for me in before if me not in victims]

        def on_its_way(me: int) -> bool:
            last = self._last(me)
            if last is None or not self._alive(me) or last.ended:
                return True
            return last.seconds > begin and (last.updates > before[me] or last.updates >= most)

        for me in others:
            words = f"did not go on after worker {victims[0]} was killed or stopped"
            self._until(lambda me=me: on_its_way(me), words, who=me)  # type: ignore[misc]

    # ---- what is to be seen from outside

    def _alive(self, me: int) -> bool:
        process = self._processes[me]
        if process.is_alive():
            return True
        if process.exitcode:
            raise self._violation(f"the process of worker {me} failed ({process.exitcode})")
        return False

    def _at_work(self, me: int) -> bool:
        """Whether it is back, and has not ended."""
        last = self._last(me)
        lines = len(self._log(me, self._lives[me] - 1))
        return self._alive(me) and last is not None and lines > _BACK and not last.ended

    def _log(self, me: int, life: int) -> list[Line]:
        path = self.setting.own(me) / f"{EVENTS}-{life}"
        return list(lines_of(path.read_bytes())) if path.exists() else []

    def _last(self, me: int) -> Line | None:
        lines = self._log(me, self._lives[me] - 1)
        return lines[-1] if len(lines) > 1 else None

    def _updates(self, me: int, before: float) -> int:
        logs = (self._log(me, life) for life in range(self._lives[me]))
        return max((x.updates for log in logs for x in log if x.seconds <= before), default=0)

    def _ended(self, me: int) -> bool:
        last = self._last(me)
        return not self._alive(me) or (last is not None and bool(last.ended))

    def _until(
        self,
        there: Callable[[], bool],
        words: str,
        seconds: float | None = None,
        who: int | None = None,
    ) -> None:
        seconds = self._patience if seconds is None else seconds
        end = time.monotonic() + seconds
        while not there():
            if time.monotonic() > end:
                name = "somebody" if who is None else f"worker {who}"
                raise self._violation(f"{name} {words}, in {seconds:g} s")
            time.sleep(0.02)

    # ---- what must hold

    def _judge(self) -> None:
        setting = self.setting
        gossip = setting.gossip()
        replays = [self._played_again(me) for me in range(setting.workers)]
        self._judge_messages(replays)
        ends: dict[int, dict[str, Any]] = {}
        for me in range(setting.workers):
            done = json.loads((setting.own(me) / OUTCOME).read_text(encoding="utf-8"))
            rounds = counted(FolderStorage(setting.own(me)))
            if max(len(rounds), max(rounds, default=0)) > gossip.plan(me).rounds:
                raise self._violation(f"worker {me} made {len(rounds)} updates: beyond its plan")
            if done["stated"] is not None and done["stated"] != len(rounds):
                raise self._violation(
                    f"worker {me} states {done['stated']} rounds, its ledger has {len(rounds)}"
                )
            if done["reason"] == "ledger set back":
                raise self._violation(f"worker {me} was told that its ledger had been set back")
            self.found.releases += len(rounds)
            self.found.reasons[str(done["reason"])] += 1
            if done["reason"] is None:
                self.found.alone += 1
            else:
                ends[me] = done
        self.models = {me: np.array(done["weights"]) for me, done in ends.items()}
        if setting.rule == "asynchronous":
            self._judge_models(self.models)
        elif self._undisturbed is not None:
            self._judge_bits(self._undisturbed)

    def _played_again(self, me: int) -> _Replay:
        """Every life of a worker once more, in a simulation that is given its events."""
        gossip, found = self.setting.gossip(), _Replay()
        for life in range(self._lives[me]):
            lines = self._log(me, life)
            if not lines:
                continue  # killed before it began
            begun = begun_of(lines[0].event)
            self._judge_begun(me, lines[0].seconds, begun.updates)
            machine = Recorded(worker(gossip, me, self.setting.start, begun))
            for line in lines[1:]:
                event = event_of(line.event)
                if isinstance(event, on.PeerMessage):
                    found.received.append((line.seconds, event))
                self.found.exchanges += isinstance(event, on.Mix)
                for effect in machine.handle(event):
                    if isinstance(effect, on.Send):
                        found.sent.add((effect.to, _said(effect.message)))
                if bytes.fromhex(machine.digest) != line.digest:
                    raise self._violation(
                        f"worker {me} did otherwise than a simulation of the same events"
                    )
            self.found.events += len(lines) - 1
            self.found.returned += life > 0 and machine.updates > begun.updates
        return found

    def _judge_begun(self, me: int, begin: float, updates: int) -> None:
        """Whoever begins has all in its ledger that others heard of before."""
        for other in range(self.setting.workers):
            if other == me:
                continue
            for life in range(self._lives[other]):
                for line in self._log(other, life)[1:]:
                    event = event_of(line.event)
                    if (
                        isinstance(event, on.PeerMessage)
                        and event.sender == me
                        and line.seconds < begin
                        and event.message.round > updates
                    ):
                        raise self._violation(
                            f"worker {other} heard of {event.message.round} updates of worker "
                            f"{me}, whose ledger had {updates} when it was started again"
                        )

    def _judge_messages(self, replays: Sequence[_Replay]) -> None:
        for me, replay in enumerate(replays):
            for _, event in replay.received:
                if (me, _said(event.message)) not in replays[event.sender].sent:
                    raise self._violation(
                        f"worker {me} received what worker {event.sender} never sent"
                    )

    def _judge_models(self, models: dict[int, Any]) -> None:
        if len(models) < 2 or not self._had_calm(models):
            return
        self.found.settled += 1
        held = np.array(list(models.values()))
        apart = float(np.linalg.norm(held - held.mean(0), axis=1).max())
        gossip = self.setting.gossip()
        one = gossip.plan(0).round(0)
        noise = gossip.plan(0).optimizer.learning_rate * one.noise_std / one.divisor
        self.found.apart = apart / (noise * math.sqrt(held.shape[1]))
        if self.found.apart > 1:
            raise self._violation(
                f"models are {self.found.apart:.2f} times the noise of an update apart"
            )

    def _had_calm(self, models: Mapping[int, Any]) -> bool:
        """Whether those who end together had time and exchanges enough to agree.

        Time counts from when the last of them is back: a start takes long on a busy machine, and
        the others may end meanwhile.
        """
        logs = {me: self._log(me, self._lives[me] - 1) for me in models}
        calm = max(self._calm_since, *(log[0].seconds for log in logs.values())) + _CALM
        for log in logs.values():
            ended = next((x.seconds for x in log if x.ended), math.inf)
            after = [x for x in log if calm <= x.seconds <= ended]
            mixes = sum(isinstance(event_of(x.event), on.Mix) for x in after)
            if ended < calm or mixes < _CALM_EXCHANGES:
                return False
        return True

    def _judge_bits(self, undisturbed: Mapping[int, Any]) -> None:
        """Who waits for everybody must come to what it would have come to without any blow."""
        for me, model in undisturbed.items():
            if me not in self.models:
                raise self._violation(f"worker {me} did not end")
            if not np.array_equal(self.models[me], model):
                raise self._violation(f"worker {me} ends with another model than undisturbed")
        self.found.settled += 1

    def _violation(self, what: str) -> ViolationError:
        setting = self.setting
        return ViolationError(f"seed {setting.seed}, {setting.engine}, {setting.rule}: {what}")


@dataclass
class _Replay:
    """What a worker's lives were, played again."""

    received: list[tuple[float, on.PeerMessage]] = field(default_factory=list)
    sent: set[tuple[int, bytes]] = field(default_factory=set)


def _said(message: Any) -> bytes:
    """A worker's message without the proof that its carrier adds where frames are signed."""
    return encode(replace(message, proof=b"") if hasattr(message, "proof") else message)


def run_kills(
    kills: int,
    engine: str,
    first: int = 0,
    *,
    each: int = 8,
    report: Callable[[int], None] | None = None,
    **changes: Any,
) -> Blows:
    """Trials until so many blows have fallen.

    Args:
        each: blows in a trial, about.

    Raises:
        ViolationError: names the seed.
    """
    total, seed = Blows(), first
    while total.killed + total.stopped < kills:
        left = kills - total.killed - total.stopped
        rounds = _ROUNDS * min(each, left) + _LAST_ROUNDS
        undisturbed = None
        if changes.get("rule", "asynchronous") != "asynchronous":
            rounds = _WAITING_ROUNDS * min(each, left)
            with prepared(engine, seed, rounds=rounds, **changes) as calm:
                alone = KillTrial(calm, 0)
                alone.run()
                undisturbed = alone.models
        with prepared(engine, seed, rounds=rounds, **changes) as setting:
            found = KillTrial(setting, min(each, left), undisturbed=undisturbed).run()
        for name in ("trials", "killed", "stopped", "together", "returned", "alone"):
            setattr(total, name, getattr(total, name) + getattr(found, name))
        for name in ("releases", "exchanges", "events", "settled"):
            setattr(total, name, getattr(total, name) + getattr(found, name))
        total.apart = max(total.apart, found.apart)
        total.reasons += found.reasons
        seed += 1
        if report is not None:
            report(min(kills, total.killed + total.stopped))
    return total
