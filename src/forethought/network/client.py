"""A federation's client as a process: connection, ledger, secrets, trainer, statement."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import grpc

from forethought.accounting.statement import Statement
from forethought.exchange.events import Compute, Computed
from forethought.exchange.frame import Endpoint
from forethought.exchange.keys import POLICY, POLICY_SCHEMA, ROSTER, Roster
from forethought.exchange.keys import Keys as MemberKeys
from forethought.exchange.ledger import ClientLedger, Witness
from forethought.exchange.messages import SERVER, Vector
from forethought.exchange.storage import FolderStorage, LedgerState
from forethought.federated.client import ClientMachine
from forethought.federated.federation import FEDERATION, Federation, FederationError, require_roster
from forethought.federated.secure_aggregation.client import SecureClient
from forethought.federated.secure_aggregation.masking import Ring, SecureAggregation, to_ring
from forethought.federated.statements import Policy, View, client_statement
from forethought.holders.trainer import (
    ClientTrainer,
    Holder,
    SharedModel,
    own_secrets,
    randomness_of,
    released,
)
from forethought.holders.work import Result
from forethought.network.driving import (
    ClientDriver,
    Guarded,
    Outbox,
    Raised,
    channel_credentials,
    channel_options,
    stop_on_signals,
)
from forethought.network.server import LOOK, METHOD, SERVICE, require_member
from forethought.rounds.losses import Loss
from forethought.rounds.randomness import Seeds
from forethought.rounds.records import Records
from forethought.rounds.transcript import TRANSCRIPT
from forethought.training.folder import PLAN, locked
from forethought.values.plan import grid
from forethought.values.serialisation import canonical, plain

# A client: connects, comes back after every loss, computes beside the connection.


# Seconds between two tries to connect: from the first, doubling, to the last; half of it random.
BACK_OFF = (0.1, 5.0)
# Seconds that the last words of a client may take to get out.
_FLUSH = 5.0

Send = Callable[[int, Any, bytes], None]
Begin = Callable[[Compute], None]


class Stream(Protocol):
    """A way to the server and back while it is open; frames may be lost with it."""

    async def read(self) -> bytes | None:
        """The next frame from the server; None: the way is closed."""
        ...

    async def write(self, frame: bytes) -> None:
        """Put a frame on its way."""
        ...

    async def finish(self) -> None:
        """Nothing more is written; returns when everything has arrived, or the way is closed."""
        ...


# Longest frame that may come → an open stream; an OSError or a TimeoutError: not now.
Connect: TypeAlias = Callable[[int], AbstractAsyncContextManager[Stream]]


class FederationClient:
    """Takes part in one federation.

    Args:
        connect: opens a way to the server: :func:`grpc_stream`, or an engine's.
        driver: makes the driver, given how frames get out and how an update is begun.
        compute: makes an update; called in a thread of its own, one at a time.
        back_off: (first, last) seconds between two tries to connect.

    Attributes:
        driver: of the machine. connections: how often it connected. connected: whether it is now.
    """

    def __init__(
        self,
        connect: Connect,
        driver: Callable[[Send, Begin], ClientDriver],
        compute: Callable[[Compute], Computed | None],
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        self._connect, self._back_off = connect, back_off
        self.compute = compute
        self._outbox: Outbox | None = None
        self.driver = driver(self._send, self._begin)
        self.connections, self.connected = 0, False
        self._ending = False
        self._worker: threading.Thread | None = None
        self._guard = Guarded(self.driver)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, stop: asyncio.Event, leave: bool = False) -> None:
        """Take part until the machine has nothing more to do, or until ``stop``.

        Args:
            leave: say goodbye for good on the first connection.

        Raises:
            Exception: what went wrong in a write or in computing; a new process goes on from the
                ledger.
        """
        self._loop = asyncio.get_running_loop()
        talking = asyncio.create_task(self._talk(leave))
        try:
            await self._guard.until(stop)
            self._ending = True
            if self._outbox is not None:
                self._outbox.close()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_FLUSH):
                        await talking
        finally:
            talking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await talking
        if self._worker is not None and self._worker.is_alive():
            # What is being computed is finished and committed; a second signal acts at once.
            await asyncio.to_thread(self._worker.join)
            await asyncio.sleep(0)
        self._guard.check()

    async def _talk(self, leave: bool) -> None:
        first, last = self._back_off
        wait = first
        while not self._ending:
            with contextlib.suppress(OSError):  # TimeoutError is one
                if await self._connection(leave):
                    wait = first
            if self._ending or self.driver.done is not None:
                return
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, last)

    async def _connection(self, leave: bool) -> bool:
        """One connection from its beginning to its end; whether it came about."""
        async with self._connect(self.driver.endpoint.most_bytes) as stream:
            outbox = self._outbox = Outbox()
            writer = asyncio.create_task(self._write(stream, outbox))
            self.connections, self.connected = self.connections + 1, True
            try:
                self._guard.do(self.driver.stopped if leave else self.driver.connected)
                reader = asyncio.create_task(self._read(stream))
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
                reader.cancel()
            finally:
                self.connected, self._outbox = False, None
                outbox.close()
                writer.cancel()
                self._guard.do(self.driver.disconnected)
        return True

    async def _read(self, stream: Stream) -> None:
        while (data := await stream.read()) is not None:
            self._guard.do(lambda data=data: self.driver.received(data, SERVER))  # type: ignore[misc]

    async def _write(self, stream: Stream, outbox: Outbox) -> None:
        while (frame := await outbox.get()) is not None:
            await stream.write(frame)
        await stream.finish()

    def _send(self, to: int, message: Any, frame: bytes) -> None:
        if self._outbox is not None:
            self._outbox.put(message, frame)

    def _begin(self, asked: Compute) -> None:
        if self._ending:
            return  # the process that goes on from the ledger is asked again
        work = (asked, self._worker)
        self._worker = threading.Thread(target=self._work, args=work, daemon=True)
        self._worker.start()

    def _work(self, asked: Compute, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # the parts of one update, in order
        try:
            done = self.compute(asked)
        except BaseException as error:
            outcome = _raising(error)
        else:
            if done is None:
                return
            outcome = lambda: self.driver.handle(done)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop has ended by a second signal
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._guard.do, outcome)


class _GrpcStream:
    """A stream over one call; whatever goes wrong in it closes it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            data: Any = await self._call.read()
            return None if data is grpc.aio.EOF else bytes(data)
        return None

    async def write(self, frame: bytes) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(frame)

    async def finish(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()
            # The server ends the stream when it has read everything.
            await self._call.code()


def grpc_stream(roster: Roster, keys: MemberKeys, address: str) -> Connect:
    """Streams over gRPC with mutual TLS.

    Args:
        roster: whose server to connect to. keys: own. address: host:port of the server.
    """

    @contextlib.asynccontextmanager
    async def connect(most_bytes: int) -> AsyncIterator[Stream]:
        options = channel_options(most_bytes)
        # The certificate is for the server's name in the roster, whatever host it runs on.
        options.append(("grpc.ssl_target_name_override", roster.server.name))
        credentials = channel_credentials(keys, roster)
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            async with asyncio.timeout(10.0):
                await channel.channel_ready()
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            try:
                yield _GrpcStream(call)
            finally:
                call.cancel()

    return connect


def _raising(error: BaseException) -> Callable[[], None]:
    def outcome() -> None:
        raise error

    return outcome


# A federation's client as a process: its folder of ledger and secrets, trainer and statement.
#
# Everything that protects the client's records is here and below: its plan and policy, its ledger,
# its secrets, its noise. The server gets frames of noised updates.


# Reasons of a machine to be done after which there is nothing to go on with.
ENDINGS = ("finished", "stopped by its owner")
Carry: TypeAlias = Callable[
    [Callable[[Send, Begin], ClientDriver], Callable[[Compute], Computed | None]], ClientDriver
]


@dataclass(frozen=True)
class Share:
    """The data and options that a client brings along.

    Args:
        records: its own. loss: one value per example. policy: the most that it allows.
        seeds: of its random numbers; a seeded noise protects nothing, as its statement says.
        micro_batch: examples whose gradients are held at once.
    """

    records: Records
    loss: Loss
    policy: Policy
    seeds: Seeds = Seeds()  # noqa: RUF009 (frozen)
    micro_batch: int | None = None


@dataclass(frozen=True)
class TookPart:
    """The outcome of taking part.

    Args:
        reason: why it ended; None: it was paused, and can go on.
        updates: in the ledger. statement: of what was released, as it is in the folder with
            what it rests on; None: nothing was.
        weights: of the last model that was received; None: there was none.
        alarms: what an operator must see.
    """

    reason: str | None
    updates: int
    statement: Statement | None
    weights: Vector | None
    alarms: tuple[Raised, ...]

    @property
    def over(self) -> bool:
        """True if nothing can follow; else folder and secrets are still needed."""
        return self.reason in ENDINGS


def take_part(
    federation: Federation,
    roster: Roster,
    keys: MemberKeys,
    shared: SharedModel,
    share: Share,
    folder: Path,
    carry: Carry,
    *,
    stated: Federation | None = None,
    witness: Path | None = None,
) -> TookPart:
    """Take part for as long as ``carry`` does: to the end, or until it is stopped.

    Args:
        shared: the model. share: records and policy.
        folder: of ledger and secrets; a folder with a ledger goes on where it was.
        carry: takes frames to the server and back, given how to make the driver and how to
            compute an update; see :func:`over_grpc`. Returns the driver.
        witness: a folder apart from ``folder``, to tell a ledger that was set back; None: only the
            server can tell.
        stated: the federation that the statement is made from, where loading found more to say.

    Raises:
        FederationError: a plan beyond the policy (before anything is connected), other records,
            model, roster or keys, or a part that has ended. LedgerError, LogError: the ledger is
            another run's, was set back, or is damaged.
        RunFolderBusyError: somebody takes part there. OSError: a write that failed.
    """
    require_roster(federation, roster)
    me = roster.place(keys.identity.name)
    require_member(keys, roster, me)
    if shared.architecture != federation.architecture:
        raise FederationError(
            "the job's model is not the federation's: names or shapes of its parameters differ"
        )
    plan = federation.plan(me)
    if len(share.records) != plan.examples:
        raise FederationError(
            f"the plan is for {plan.examples} examples, the data has {len(share.records)}: the "
            "guarantee depends on it"
        )
    share.policy.require(federation, me)
    with locked(folder):
        storage = FolderStorage(folder)
        own = own_secrets(folder, share.seeds, FederationError)
        server = {SERVER: bytes.fromhex(roster.server.public_key)}
        endpoint = Endpoint(federation.run_id, me, keys.signing, server, federation.parameters)
        ledger = ClientLedger(storage, endpoint, share.records.digest(own.identity))
        kept = None if witness is None else Witness(witness, federation.run_id, me)
        if kept is not None:
            kept.require(ledger.read().updates)
        trainer = ClientTrainer(
            shared,
            Holder(plan, share.records, share.loss, own.secrets, share.micro_batch),
            federation.local_rounds,
            gradients=federation.exchanged == "gradients",
            state=ledger.read().state,
        )

        if federation.secure is None:
            machine = ClientMachine(federation, me, ledger.read(), share.policy, time.time_ns())
        else:
            machine = _behind_masks(federation, me, ledger.read(), share, keys, roster, trainer)

        def compute(asked: Compute) -> Computed | None:
            found: Result | None
            if asked.parts == 1:
                found = trainer.compute(asked.round, asked.vector)
            else:
                found = trainer.compute_part(asked.round, asked.vector, asked.part, asked.parts)
            if found is None:
                return None
            now = time.monotonic()
            return Computed(
                asked.round,
                asked.base,
                found.vector,
                found.rounds,
                found.input_hash,
                found.state,
                now,
            )

        driver = carry(
            lambda out, begin: ClientDriver(machine, ledger, endpoint, out, begin, witness=kept),
            compute,
        )
        state = ledger.read()
        transcript = released(state.state)
        randomness = randomness_of(own, plan)
        statement = None
        if len(transcript):
            view: View = "server" if federation.secure is None else "secure-server"
            statement = client_statement(
                stated or federation, me, view, transcript=transcript, randomness=randomness
            ).save(
                folder,
                {
                    PLAN: (stated or federation).plan(me).to_json(),
                    TRANSCRIPT: transcript.to_json(),
                    FEDERATION: federation.to_json(),
                    ROSTER: roster.to_json(),
                    POLICY: canonical({"schema": POLICY_SCHEMA, **plain(share.policy)}),
                },
            )
        return TookPart(
            driver.done, state.updates, statement, machine.weights, tuple(driver.alarms)
        )


def over(
    connect: Connect,
    *,
    leave: bool = False,
    look: Callable[[ClientDriver, bool], None] | None = None,
) -> Carry:
    """Over streams to the server, until the machine is done, or SIGINT or SIGTERM.

    Args:
        connect: opens one: :func:`grpc_stream`, or an engine's.
        leave: say goodbye for good; the server goes on without this client.
        look: called with the driver and whether it is connected, now and then.
    """

    def carry(
        make: Callable[[Send, Begin], ClientDriver], compute: Callable[[Compute], Computed | None]
    ) -> ClientDriver:
        client = FederationClient(connect, make, compute)
        asyncio.run(_until_done(client, leave, look))
        return client.driver

    return carry


def _behind_masks(
    federation: Federation,
    me: int,
    ledger: LedgerState,
    share: Share,
    keys: MemberKeys,
    roster: Roster,
    trainer: ClientTrainer,
) -> ClientMachine:
    """A machine whose updates leave masked, with keys that the roster's owners sign."""
    bits = SecureAggregation.from_dict(federation.secure or {}).bits

    def elements(number: int) -> Ring:
        noised = trainer.noised
        if noised is None or noised.round.index != number:
            raise FederationError(f"update {number} is not the last one that was computed")
        one = noised.round
        step, _ = grid(one.noise_std, one.clip_norm, federation.parameters)
        return to_ring(noised.vector.cpu().numpy(), step, bits)

    return SecureClient(
        federation,
        me,
        ledger,
        share.policy,
        time.time_ns(),
        elements=elements,
        sign=keys.signing.sign,
        verify=roster.signed,
    )


async def _until_done(
    client: FederationClient,
    leave: bool,
    look: Callable[[ClientDriver, bool], None] | None,
) -> None:
    async def watch(show: Callable[[ClientDriver, bool], None]) -> None:
        while True:
            show(client.driver, client.connected)
            await asyncio.sleep(LOOK)

    stop = asyncio.Event()
    async with stop_on_signals(stop):
        task = None if look is None else asyncio.create_task(watch(look))
        try:
            await client.run(stop, leave)
        finally:
            if task is not None:
                task.cancel()
