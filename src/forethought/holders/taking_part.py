"""A holder as a process: its folder of ledger and secrets, its trainer, its statement.

This module and those that it calls hold all that protects the holder's records: its plan and
policy, its ledger, its secrets, its noise. Only post-processing of noised sums leaves the process,
and each release is durably in the ledger before anything that depends on it is sent.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.accounting.interval import at_most
from forethought.accounting.statement import Randomness, Statement
from forethought.exchange.events import Compute, Computed
from forethought.exchange.keys import POLICY, POLICY_SCHEMA, ROSTER, Keys, Roster
from forethought.exchange.messages import SERVER, Endpoint, Leave, Vector
from forethought.exchange.storage import LEDGER, ClientLedger, FolderStorage, MemberWitness
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation, FederationError
from forethought.federated.secure_aggregation.client import SecureClient
from forethought.federated.secure_aggregation.masking import Ring, SecureAggregation, to_ring
from forethought.federated.sizes import released
from forethought.federated.statements import Policy
from forethought.gossip.gossip import Gossip, GossipError
from forethought.gossip.statements import worker_statement
from forethought.holders.driving import CarryClient, ClientDriver, Out
from forethought.holders.links import Links, Pace, Stop, WorkerDriver, WorkerOutcome
from forethought.holders.simulator import Work, worker
from forethought.holders.topology import LEFT, Agreed, endings, made_plan, statement_of
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel, own_secrets
from forethought.ledger.book import unit_of
from forethought.rounds.contributions import Loss
from forethought.rounds.randomness import Seeds
from forethought.rounds.records import Records
from forethought.training.folder import PAID, PLAN, RESERVATION, RunFolderBusyError, locked
from forethought.values.caveats import Caveat
from forethought.values.checks import real
from forethought.values.plan import TRANSCRIPT, grid
from forethought.values.serialisation import canonical, plain

if TYPE_CHECKING:
    from forethought.ledger.paid_run import Ledger

# Reason of a worker's end: its ledger was set back, so the ledger's count of releases is too low.
SET_BACK = "ledger set back"
# Folder of the statement against an observer of one final model.
OUTSIDER = "outsider"
# Files of a client's folder: the number of its last process; and there is one if it ever said
# goodbye, which results may have decided, even if it came back.
LIFE, GOODBYE = "life", "left"


@dataclass(frozen=True)
class Share:
    """The data and options of a holder.

    Args:
        records: its own, exactly as many as its plan says. loss: one value per example.
        epsilon: the most that its whole plan may spend, at delta; None: no limit but the plan.
        delta: None: the plan's.
        seeds: of its random numbers; a seeded noise protects nothing, as its statement says.
        micro_batch: number of examples whose gradients are in memory at once.
        witness: folder of a second count of its releases, which detects a ledger restored from a
            backup; not the ledger's folder, and not in the same backup. None: only other members
            can detect one.
        payer: the account that pays for the whole plan, a `forethought.Ledger`; None: none pays.
    """

    records: Records
    loss: Loss
    epsilon: float | None = None
    delta: float | None = None
    seeds: Seeds = Seeds()  # noqa: RUF009 (frozen)
    micro_batch: int | None = None
    witness: Path | None = None
    payer: Ledger | None = None

    def require(self, agreed: Federation | Gossip, me: int) -> None:
        """Refuse a plan for another number of records, or a worker's beyond its ``epsilon``.

        Raises:
            FederationError, GossipError: names both figures; or sizes that results choose have a
                payer, whose book reserves the planned rounds alone.
        """
        plan, name = agreed.plan(me), agreed.members[me].name
        if len(self.records) != plan.examples:
            raise agreed.REFUSAL(
                f"the plan of {name!r} is for {plan.examples} examples, the data has "
                f"{len(self.records)}, without those held out: give that number in the job, and "
                "have what all agree on made again"
            )
        if isinstance(agreed, Federation):
            if agreed.sizes is not None and self.payer is not None:
                raise FederationError(
                    "federation.sizes chooses sampling rates by results, and a ledger pays for the "
                    "planned ones only: leave out [ledger] (payer=), or federation.sizes"
                )
            return  # a client's policy sets its limits
        if self.epsilon is None:
            return
        found = worker_statement(agreed, me, delta=self.delta).guarantee
        if found > real("epsilon", self.epsilon, above=0):
            raise GossipError(
                f"the plan of {name!r} spends epsilon {at_most(found)}, its owner allows "
                f"{self.epsilon:g}: ask for a plan with more noise or fewer rounds"
            )


@dataclass(frozen=True)
class TookPart:
    """The outcome of taking part.

    Args:
        reason: why it ended; None: it was paused, and can go on.
        over: True if it cannot go on; otherwise folder and secrets are still needed.
        updates: number in the ledger. statements: of the releases, as saved in the folder with
            their evidence: against the server; or against the neighbours, and against an observer
            of one final model only. (): nothing was released.
        weights: float32, shape (parameters,): a worker's own model, or the last model that a client
            received; None: it received none.
        alarms: for the operator. drove: of a worker its
            :class:`~forethought.holders.links.WorkerOutcome`; None of a client.
    """

    reason: str | None
    over: bool
    updates: int
    statements: tuple[Statement, ...]
    weights: Vector | None
    alarms: tuple[Any, ...]
    drove: Any = None

    @property
    def statement(self) -> Statement | None:
        """The statement against the server or the neighbours; None: nothing was released."""
        return self.statements[0] if self.statements else None

    @property
    def outsider(self) -> Statement | None:
        """A worker's statement against an observer of one final model; None: there is none."""
        return self.statements[1] if self.statements[1:] else None


class _Part:
    """A holder's part while its folder is locked.

    Args:
        held: contexts that are left when the part ends. agreed, me, shared, share, folder: see
            :func:`take_part`. keys: the holder's own; None: made in the folder.
        known: place → public key of every member whose frames are opened.
    """

    def __init__(
        self,
        held: contextlib.ExitStack,
        agreed: Agreed,
        me: int,
        shared: SharedModel,
        share: Share,
        folder: Path,
        keys: Keys | None,
        known: Mapping[int, bytes],
    ) -> None:
        share.require(agreed, me)
        held.enter_context(locked(folder))
        self.witness: MemberWitness | None = None
        if share.witness is not None:
            self.witness = MemberWitness(share.witness, agreed.run_id, me)
            _alone(held, self.witness.path)
        paid = self._paid = held.enter_context(_reserved(share, agreed, me, folder))
        own = own_secrets(folder, share.seeds, agreed.REFUSAL)
        self.keys = keys or own_keys(folder / "member", f"worker-{me}")
        self._agreed, self._me, self.storage = agreed, me, FolderStorage(folder)
        self.returning = self.storage.read(LEDGER) is not None
        length = agreed.parameters if isinstance(agreed, Federation) else agreed.in_ledger
        self.endpoint = Endpoint(agreed.run_id, me, self.keys.signing, known, length)
        allows = agreed.guard(me) if isinstance(agreed, Federation) else None
        counted = partial(_paid_rounds, agreed, me)
        ahead = None if paid is None else lambda rounds: paid.ahead(counted(rounds))
        digest = share.records.digest(own.identity)
        self.ledger = ClientLedger(self.storage, self.endpoint, digest, allows, ahead)
        state = self.ledger.read()
        if paid is not None:
            paid.recorded(counted(state.rounds))
        if self.witness is not None:
            self.witness.require(state.updates)
        brought = share.records, share.loss, own.secrets, share.micro_batch
        self.trainer = ClientTrainer(shared, Holder.of(agreed, me, *brought), state=state.state)
        seeded = own.secrets.seeded_noise, own.secrets.seeded_sampling
        self._randomness = Randomness(*seeded, grid=agreed.plan(me).noise == "grid")

    def took(
        self,
        stated: Agreed,
        policy: Mapping[str, Any],
        files: Mapping[str, str],
        reason: str | None,
        weights: Vector | None,
        alarms: Iterable[Any],
        drove: Any = None,
        *,
        left: bool = False,
    ) -> TookPart:
        """The outcome: settled with the payer if the part is over, its statements made and saved.

        Args:
            stated: the agreement that statements are made from. policy: the limits allowed.
            files: further evidence. reason: why the part ended; None: it was paused.
            weights, alarms, drove: of the outcome. left: see :func:`statement_of`.
        """
        agreed, me, held = self._agreed, self._me, self.ledger.read()
        over, caveats = reason in endings(agreed), list[Caveat]()
        if self._paid is not None and over and reason != SET_BACK:
            text, words = self._paid.settle(_paid_rounds(agreed, me, held.rounds))
            files, caveats = {**files, PAID: text}, [Caveat("in-the-book", words)]
        found, transcript = list[Statement](), released(held.state)
        if len(transcript):
            evidence = {
                PLAN: made_plan(stated, me, transcript).to_json(),
                TRANSCRIPT: transcript.to_json(),
                agreed.file: agreed.to_json(),
                **files,
                POLICY: canonical({"schema": POLICY_SCHEMA, **policy}),
            }
            for outsider in (False, True) if isinstance(agreed, Gossip) else (False,):
                place = self.storage.folder / (OUTSIDER if outsider else "")
                place.mkdir(exist_ok=True)
                # Whoever sees a model that was not averaged in the end sees the last round alone.
                seen = {"outsider": outsider and reason == "rounds", "left": left}
                made = statement_of(stated, me, transcript, self._randomness, caveats, **seen)
                found.append(made.save(place, evidence))
        return TookPart(reason, over, held.updates, tuple(found), weights, tuple(alarms), drove)


def _alone(held: contextlib.ExitStack, count: Path) -> None:
    """Keep other processes out while ``held`` is open: two would release a round with two noises.

    Args:
        count: the file of the member's witness, which both would read before either writes it.

    Raises:
        OSError: its folder is missing. RunFolderBusyError: another process takes part.
    """
    if not count.parent.is_dir():
        raise FileNotFoundError(f"no such folder for the count: {count.parent} (--witness)")
    try:
        held.enter_context(locked(count.with_name(f"{count.name}.busy")))
    except RunFolderBusyError:
        raise RunFolderBusyError(
            "another process takes part with these keys: wait for it, or end it. Each round is "
            "released once, whatever the folder is"
        ) from None


def _paid_rounds(agreed: Federation | Gossip, me: int, rounds: int) -> int:
    """The number of reserved rounds among the first ``rounds`` of a plan.

    A client reserves the rounds of its own phases. Of those it pays all up to the last one that it
    released, also if it left some out: they may have less noise than the earlier ones.
    """
    if not isinstance(agreed, Federation):
        return rounds
    first = agreed.first_round
    own = (range(first(at.start), min(rounds, first(at.stop))) for at in agreed.places(me))
    return sum(map(len, own))


def _reserved(
    share: Share, agreed: Federation | Gossip, me: int, folder: Path
) -> contextlib.AbstractContextManager[Any]:
    """A context with the reservation of all that a holder may release; None: there is no payer.

    Raises:
        ValueError: it does not fit, or the folder has a reservation but no payer is given.
    """
    if share.payer is not None:
        plan = agreed.plan(me)
        whole = agreed.planned(me) if isinstance(agreed, Federation) else plan.mechanism
        group, unit = plan.records_per_person, unit_of(plan)
        return share.payer.paid(whole, group=group, unit=unit, folder=folder, resume=True)
    if (folder / RESERVATION).is_file():
        raise ValueError(f"the part in {folder} is paid from a ledger: name it to go on")
    return contextlib.nullcontext()


def take_part_as_client(
    federation: Federation,
    roster: Roster,
    keys: Keys,
    shared: SharedModel,
    share: Share,
    policy: Policy,
    folder: Path,
    carry: CarryClient,
    *,
    stated: Federation | None = None,
) -> TookPart:
    """Take part in a federation while ``carry`` runs: to the end, or until it is stopped.

    Args:
        federation: the agreement. roster: of its members. keys: the client's own.
        shared: the model. share: records and options. policy: the most that the client allows.
        folder: of ledger and secrets; a part with a ledger there is continued.
        carry: carries frames to the server and back, given the functions that make the driver and
            compute an update; see :func:`~forethought.holders.driving.over_streams`. Returns the
            driver.
        stated: the federation for the statement, if loading added to it; None: ``federation``.

    Raises:
        FederationError: a plan beyond the policy (before anything is connected), other records,
            model, roster or keys, or a part that has ended. LedgerError, LogError: the ledger
            belongs to another run, was set back, or is damaged. BookError: by the book of the
            share's payer the ledger was set back, or the plan does not fit.
        RunFolderBusyError: another process uses the folder. OSError: a write failed.
    """
    roster.require(federation)
    me = roster.place(keys)
    if me == SERVER:
        raise FederationError("the keys are the server's, not a client's")
    require_architecture(shared, federation)
    policy.require(federation, me)
    server = {SERVER: bytes.fromhex(roster.server.public_key)}
    with contextlib.ExitStack() as held:
        part = _Part(held, federation, me, shared, share, folder, keys, server)
        trainer, ledger, storage = part.trainer, part.ledger, part.storage
        kind = ClientMachine if federation.secure is None else _masked(federation, part, roster)
        # This process's number is above those of all earlier ones, whatever the clock says.
        life = max(time.time_ns(), int(storage.read(LIFE) or 0) + 1)
        storage.replace(LIFE, str(life).encode())
        machine = kind(federation, me, ledger.read(), life=life)

        def compute(asked: Compute) -> Computed | None:
            found = trainer.answered(Work.of(me, asked))
            return None if found is None else found.answer(asked, time.monotonic())

        def driver_of(out: Out, begin: Callable[[Compute], None]) -> ClientDriver:
            def sending(to: int, message: Any, frame: bytes) -> None:
                if isinstance(message, Leave) and message.reason == "stopped":
                    storage.replace(GOODBYE, b"")
                out(to, message, frame)

            known = machine, ledger, part.endpoint, sending, begin
            return ClientDriver(*known, witness=part.witness)

        driver = carry(driver_of, compute)
        left = driver.done == LEFT or storage.read(GOODBYE) is not None
        files, ended = {ROSTER: roster.to_json()}, (driver.done, machine.weights, driver.alarms)
        return part.took(stated or federation, plain(policy), files, *ended, left=left)


def _masked(federation: Federation, part: _Part, roster: Roster) -> Callable[..., ClientMachine]:
    """The kind of machine that masks its updates, with keys that the roster's members sign."""
    bits = SecureAggregation.from_dict(federation.secure or {}).bits

    def elements(number: int) -> Ring:
        noised = part.trainer.noised
        if noised is None or noised.round.index != number:
            raise FederationError(f"update {number} is not the last one that was computed")
        one = noised.round
        step, _ = grid(one.noise_std, one.clip_norm, federation.parameters)
        return to_ring(noised.vector.cpu().numpy(), step, bits)

    sign = part.keys.signing.sign
    return partial(SecureClient, elements=elements, sign=sign, verify=roster.signed)


def require_architecture(shared: SharedModel, federation: Federation) -> None:
    """Refuse another model than the federation's. Raises FederationError."""
    if shared.architecture != federation.architecture:
        raise FederationError(
            "the job's model is not the federation's: names or shapes of its parameters differ"
        )


def take_part(
    gossip: Gossip,
    me: int,
    shared: SharedModel,
    share: Share,
    folder: Path,
    links: Callable[[Keys], Links],
    *,
    keys: Keys | None = None,
    pace: Pace | None = None,
    stop: Stop | None = None,
    look: Callable[[WorkerOutcome], None] | None = None,
    stated: Gossip | None = None,
) -> TookPart:
    """Take part in a gossip to the end, or until ``stop`` returns True.

    Args:
        gossip: the agreement. me: the worker's place in it.
        shared: the model, with the first weights. share: records and options.
        folder: of ledger and secrets; a part with a ledger there is continued.
        links: makes the links to the neighbours, given the worker's keys.
        keys: the worker's own; None: made in the folder, for links that do not check them.
        pace: see :class:`~forethought.holders.links.WorkerDriver`.
        stop, look: see its :meth:`~forethought.holders.links.WorkerDriver.run`.
        stated: the gossip for the statement, if loading added to it; None: ``gossip``.

    Raises:
        GossipError: another model, other first weights or records, a plan beyond ``share``'s limit
            (before anything is connected), or a part that has ended. LedgerError, LogError: the
            ledger belongs to another gossip, was set back, or is damaged. PeersError: see ``run``.
        RunFolderBusyError: another process uses the folder. OSError: a write failed.
    """
    first = shared.read()
    gossip.require(shared.architecture, first)
    with contextlib.ExitStack() as held:
        part = _Part(held, gossip, me, shared, share, folder, keys, {})
        near = gossip.mixing.graph.neighbours(me)
        machine = worker(gossip, me, first, part.ledger.read())
        drove = WorkerDriver(
            machine,
            gossip,
            me,
            links(part.keys),
            part.trainer.compute,
            ledger=part.ledger,
            pace=pace,
            returning=part.returning,
            witness=part.witness,
            heard={peer: MemberWitness(folder, gossip.run_id, peer) for peer in near},
        ).run(stop, look)
        policy = {"epsilon": share.epsilon, "delta": share.delta}
        ended = drove.reason, machine.weights, drove.alarms
        return part.took(stated or gossip, policy, {}, *ended, drove)


def own_keys(folder: Path, name: str) -> Keys:
    """A member's keys in a folder, made there at the first call."""
    if folder.exists():
        return Keys.load(folder)
    # Atomic: a worker that is killed while it makes its keys must be able to start again.
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    made = Keys.make(part, name)
    part.replace(folder)
    return made
