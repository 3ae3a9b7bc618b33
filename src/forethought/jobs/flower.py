"""Flower as an engine: the same machines in a ServerApp and a ClientApp, through its Message API.

``examples/flower`` is an app that uses this. Flower carries frames in requests and replies; who
sent them, their signatures, ledger, journal and statements are those of a federation over gRPC.
Nodes are Flower's and change their numbers; clients are known by their keys. A ServerApp that is
started again goes on from its journal.

Configuration of the run (``[tool.flwr.app.config]``): ``job`` (the job file), ``keys`` (the
server's folder of keys), ``out`` (its journal and results). Of each SuperNode (``--node-config``):
the same, for its client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.exchange.events import Compute, Computed
from forethought.exchange.messages import SERVER, Join
from forethought.federated.federation import Federation, FederationError
from forethought.federated.server import ServerMachine
from forethought.jobs.federate_network import FEDERATION, serve_job, take_part_in_job
from forethought.jobs.job import JobError
from forethought.jobs.request import from_file
from forethought.network.client import Begin, Send
from forethought.network.driving import ClientDriver, Out, ServerDriver
from forethought.network.serving import status_of
from forethought.network.status import Status
from forethought.network.turns import ServerTurns, client_turn

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

FRAMES, ENDED = "frames", "ended"
# Seconds that a request may take, with the training in it; after them it is asked again.
PATIENCE = 900.0
# Seconds between two looks for replies, and that a finished server waits for the last ones.
_LOOK, _LINGER = 0.5, 60.0


def server_app() -> ServerApp:
    """The ServerApp of a federation; its run config says which."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        job, keys, out = _places(context.run_config)

        def carry(machine: ServerMachine, make: Callable[[Out], ServerDriver]) -> Status:
            return _carry(grid, machine, make)

        served, accuracy = serve_job(from_file(job), keys, out, carry=carry)
        words = "" if accuracy is None else f", accuracy on held-out data {accuracy:.2%}"
        print(f"federation finished after {served.status.version} models{words}", flush=True)

    return app


def client_app() -> ClientApp:
    """The ClientApp of a federation; its node config says whose."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def query(message: Message, context: Context) -> Message:
        frames = list(message.content.config_records[FRAMES][FRAMES])
        replies = answered(context.node_config, frames)
        content = RecordDict({FRAMES: ConfigRecord({FRAMES: replies})})
        return Message(content=content, reply_to=message)

    return app


def answered(config: Mapping[str, Any], frames: list[bytes]) -> list[bytes]:
    """A client's answer to one request, and its statement up to date in its folder.

    Args:
        config: of the node. frames: of the request.

    Raises:
        JobError: the configuration names no job, keys or folder.
    """
    job, keys, out = _places(config)
    if (out / ENDED).exists():
        # Its secrets are gone; it says that it is here, so that the server can let it go.
        return [] if frames else [(out / ENDED).read_bytes()]
    replies: list[bytes] = []
    last_words = b""

    def carry(
        make: Callable[[Send, Begin], ClientDriver], compute: Callable[[Compute], Computed]
    ) -> ClientDriver:
        nonlocal last_words
        driver, found = client_turn(frames, make, compute)
        replies.extend(found)
        state = driver.ledger.read()
        last_words = driver.endpoint.seal(SERVER, Join(state.updates, state.base))
        return driver

    took = take_part_in_job(from_file(job), keys, out, carry=carry)
    if took.over:
        (out / ENDED).write_bytes(last_words)
    return replies


def _carry(grid: Grid, machine: ServerMachine, make: Callable[[Out], ServerDriver]) -> Status:
    from flwr.app import ConfigRecord, Message, MessageType, RecordDict

    clients = len(machine.federation.members)
    turns = ServerTurns(make, clients)
    begin = time.monotonic()
    turns.driver.connected()
    asked: dict[str, tuple[int, float]] = {}  # message → node, when
    finished: float | None = None
    while finished is None or (
        set(range(clients)) - machine.left - turns.told and time.monotonic() - finished < _LINGER
    ):
        busy = {node for node, _ in asked.values()}
        for node in set(grid.get_node_ids()) - busy:
            frames = turns.request(node)
            if frames is not None:
                content = RecordDict({FRAMES: ConfigRecord({FRAMES: frames})})
                request = Message(
                    content=content,
                    dst_node_id=node,
                    message_type=MessageType.QUERY,
                    ttl=PATIENCE,
                )
                for number in grid.push_messages([request]):
                    asked[number] = (node, time.monotonic())
        for reply in grid.pull_messages(list(asked)):
            node, _ = asked.pop(reply.metadata.reply_to_message_id)
            _take(turns, node, reply)
        for number, (node, since) in list(asked.items()):
            if time.monotonic() - since > PATIENCE:
                del asked[number]
                turns.failed(node)
        turns.driver.woken()
        if machine.finished and finished is None:
            finished = time.monotonic()
        time.sleep(_LOOK)
    return status_of(machine, turns.driver, turns.heard, time.monotonic() - begin)


def _take(turns: ServerTurns, node: int, reply: Message) -> None:
    if reply.has_error():
        turns.driver.alarm("flower", f"node {node}: {reply.error.reason}")
        turns.failed(node)
        return
    turns.replied(node, list(reply.content.config_records[FRAMES][FRAMES]))


def _places(config: Mapping[str, Any]) -> tuple[Path, Path, Path]:
    missing = [name for name in ("job", "keys", "out") if not config.get(name)]
    if missing:
        raise JobError(
            f"the configuration lacks {', '.join(missing)}: give job, keys and out, each a path"
        )
    job, keys, out = (Path(str(config[name])) for name in ("job", "keys", "out"))
    agreed = Federation.load(keys / FEDERATION)
    if agreed.cadence is not None:
        raise FederationError(
            "Flower answers each request as soon as it is computed, not at a cadence: use "
            "federate server and client, or leave cadence out of [federation]"
        )
    if agreed.secure is not None:
        raise FederationError(
            "secure aggregation needs a client that keeps its keys from message to message, which "
            "Flower's do not: use federate server and client, or leave secure out of [federation]"
        )
    return job, keys, out
