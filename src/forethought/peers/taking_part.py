"""A worker as a process: its folder of ledger and secrets, its trainer, its statement.

Everything that protects the worker's records is here and below: its plan and policy, its ledger,
its secrets, its noise. Neighbours get weights that are post-processing of noised sums, and each
release is in the ledger, durably, before anything that depends on it is sent.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forethought.accounting.interval import at_most
from forethought.accounting.statement import Statement
from forethought.exchange.frame import Endpoint
from forethought.exchange.keys import POLICY, POLICY_SCHEMA
from forethought.exchange.keys import Keys as MemberKeys
from forethought.exchange.ledger import LEDGER, ClientLedger, Witness
from forethought.exchange.messages import Vector
from forethought.exchange.storage import FolderStorage
from forethought.gossip.gossip import GOSSIP, Gossip, GossipError
from forethought.gossip.machines import worker
from forethought.gossip.statements import worker_statement
from forethought.holders.trainer import (
    ClientTrainer,
    Holder,
    SharedModel,
    own_secrets,
    randomness_of,
    released,
)
from forethought.peers.driving import Drove, Pace, Stop, WorkerDriver
from forethought.peers.links import Links
from forethought.rounds.losses import Loss
from forethought.rounds.randomness import Seeds
from forethought.rounds.records import Records
from forethought.rounds.transcript import TRANSCRIPT
from forethought.training.folder import PLAN, locked
from forethought.values.serialisation import canonical

# Folder of the statement against somebody who sees one final model.
OUTSIDER = "outsider"
# Ways to end after which there is nothing to go on with.
ENDINGS = ("counted", "neighbour", "rounds", "stopped", "ledger set back")


@dataclass(frozen=True)
class Share:
    """The data and options that a worker brings along.

    Args:
        records: its own, exactly as many as its plan says. loss: one value per example.
        epsilon: the most that its whole plan may spend, at delta; None: what the plan spends.
        delta: None: the plan's.
        seeds: of its random numbers; a seeded noise protects nothing, as its statement says.
        micro_batch: examples whose gradients are held at once.
        witness: folder for the count of its releases that a restored ledger is told by; not the
            ledger's, and not in the same backup. None: only the neighbours can tell.
    """

    records: Records
    loss: Loss
    epsilon: float | None = None
    delta: float | None = None
    seeds: Seeds = Seeds()  # noqa: RUF009 (frozen)
    micro_batch: int | None = None
    witness: Path | None = None

    def require(self, gossip: Gossip, me: int) -> None:
        """Refuse a plan that is for other records, or that spends more than is allowed.

        Raises:
            GossipError: names both figures.
        """
        plan, name = gossip.plan(me), gossip.members[me].name
        if len(self.records) != plan.examples:
            raise GossipError(
                f"the plan of {name!r} is for {plan.examples} examples, the data has "
                f"{len(self.records)}: the guarantee depends on it"
            )
        if self.epsilon is None:
            return
        found = worker_statement(gossip, me, delta=self.delta).guarantee
        if found > self.epsilon:
            raise GossipError(
                f"the plan of {name!r} spends epsilon {at_most(found)}, its owner allows "
                f"{self.epsilon:g}: ask for a plan with more noise or fewer rounds"
            )


@dataclass(frozen=True)
class TookPart:
    """The outcome of taking part.

    Args:
        drove: how it went. updates: in the ledger.
        statement: against the neighbours, of what was released; None: nothing was.
        outsider: the same against somebody who sees one final model and nothing else.
        weights: this worker's model, float32, shape (parameters,).
    """

    drove: Drove
    updates: int
    statement: Statement | None
    outsider: Statement | None
    weights: Vector

    @property
    def over(self) -> bool:
        """True if nothing can follow; else folder and secrets are still needed."""
        return self.drove.reason in ENDINGS


def take_part(
    gossip: Gossip,
    me: int,
    shared: SharedModel,
    share: Share,
    folder: Path,
    links: Callable[[MemberKeys], Links],
    *,
    keys: MemberKeys | None = None,
    pace: Pace | None = None,
    stop: Stop | None = None,
    look: Callable[[Drove], None] | None = None,
    stated: Gossip | None = None,
) -> TookPart:
    """Take part to the end, or until ``stop`` says so; the same folder goes on where it was.

    Args:
        shared: the model, with the first weights. share: records, and the most they may be used.
        folder: of ledger and secrets.
        links: makes the links to the neighbours.
        keys: own; None: made in the folder, where nobody asks for them.
        pace, look: see :class:`~forethought.peers.driving.WorkerDriver`.
        stated: the gossip that the statement is made from, where loading found more to say.

    Raises:
        GossipError: another model, other first weights or records, a plan beyond what is allowed
            (before anything is connected), or a part that has ended. LedgerError, LogError: the
            ledger is another gossip's, was set back, or is damaged. PeersError: see the driver.
        RunFolderBusyError: somebody takes part there. OSError: a write that failed.
    """
    first = shared.read()
    gossip.require(shared.architecture, first)
    share.require(gossip, me)
    with locked(folder):
        own = own_secrets(folder, share.seeds, GossipError)
        if keys is None:
            keys = own_keys(folder / "member", f"worker-{me}")
        storage = FolderStorage(folder)
        returning = storage.read(LEDGER) is not None
        endpoint = Endpoint(gossip.run_id, me, keys.signing, {}, gossip.in_ledger)
        ledger = ClientLedger(storage, endpoint, share.records.digest(own.identity))
        state = ledger.read()
        trainer = ClientTrainer(
            shared,
            Holder(gossip.plan(me), share.records, share.loss, own.secrets, share.micro_batch),
            gradients=True,
            state=state.state,
        )
        witness = None
        if share.witness is not None:
            witness = Witness(share.witness, gossip.run_id, me)
            witness.require(state.updates)
        near = gossip.mixing.graph.neighbours(me)
        machine = worker(gossip, me, first, state)
        driver = WorkerDriver(
            machine,
            gossip,
            me,
            links(keys),
            trainer.compute,
            ledger=ledger,
            pace=pace,
            returning=returning,
            witness=witness,
            heard={peer: Witness(folder, gossip.run_id, peer) for peer in near},
        )
        drove = driver.run(stop, look)
        state = ledger.read()
        transcript = released(state.state)
        randomness = randomness_of(own, gossip.plan(me))
        if not len(transcript):
            return TookPart(drove, state.updates, None, None, machine.weights)
        statement, outsider = (
            worker_statement(
                stated or gossip, me, view, transcript=transcript, randomness=randomness
            )
            for view in ("neighbours", "outsider")
        )
        policy = {"schema": POLICY_SCHEMA, "epsilon": share.epsilon, "delta": share.delta}
        files = {
            PLAN: (stated or gossip).plan(me).to_json(),
            TRANSCRIPT: transcript.to_json(),
            GOSSIP: gossip.to_json(),
            POLICY: canonical(policy),
        }
        statement = statement.save(folder, files)
        (folder / OUTSIDER).mkdir(exist_ok=True)
        outsider = outsider.save(folder / OUTSIDER, files)
        return TookPart(drove, state.updates, statement, outsider, machine.weights)


def own_keys(folder: Path, name: str) -> MemberKeys:
    if folder.exists():
        return MemberKeys.load(folder)
    # Whole or not at all: a kill while they are made must not keep the worker from beginning.
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    made = MemberKeys.make(part, name)
    part.replace(folder)
    return made
