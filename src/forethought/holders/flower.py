"""Flower carries a federation's frames: a ServerApp, long-lived nodes, and short-lived apps.

Flower carries a server's requests and its nodes' replies, and knows nodes by numbers that change.
The signature on a node's last frame tells which client it is. A lost request is sent again.

A :func:`node_stream` connects one long-lived client to the SuperLink, as a SuperNode does. Flower's
own SuperNode starts a process for every message and waits three seconds between two;
:func:`answer_requests` is for such processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.exchange.events import Compute, Computed
from forethought.exchange.messages import SERVER, Finished
from forethought.federated.server import ServerMachine
from forethought.holders import driving
from forethought.holders.grpc import LINGER
from forethought.holders.server import CarryServer, Status, status_of

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid


# Names in a message's content: its frames, and the mark of a long-lived node ("a node that
# stays"), which can have several open requests.
FRAMES, STAYS = "frames", "stays"


# Seconds of silence after which a node is asked which client it is, and after which a node that
# stays gets a new request: it may have restarted, and have no open request.
GREET, STAYING = 30.0, 5.0


# Seconds that a request may take, training included; then it counts as lost.
PATIENCE = 900.0


# Seconds between two polls of the SuperLink: the first, growing to the last while nothing comes.
LOOKS = (0.03, 1.0)


# Bytes of frames that may wait for a request; beyond them the writer waits.
HELD_BYTES = 1 << 20


# The server.


@dataclass(frozen=True)
class NodeRequest:
    """Frames for a node; without any it asks which client the node is.

    Args:
        node: Flower's number of the node. last: True if the last model is among the frames.
    """

    node: int
    frames: tuple[bytes, ...]
    last: bool


class RequestReplyDriver:
    """Connects a server's driver to requests and replies.

    Args:
        make: makes the driver. clients: their number. clock: gives the time in seconds.

    Attributes:
        driver: of the machine. heard: when each client was last heard. told: clients that answered
            a request with the last model.
    """

    def __init__(
        self,
        make: Callable[[driving.Out], driving.ServerDriver],
        clients: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.driver = make(self._send)
        self.told: set[int] = set()
        self._clock = clock
        self._outboxes: dict[int, list[tuple[Any, bytes]]] = {}
        self._behind: dict[int, int] = {}
        self.heard = driving.LastHeard(clients, self._behind.values(), clock)
        self._asked: dict[int, float] = {}
        self._open: dict[int, int] = {}
        self._staying: set[int] = set()

    def request(self, node: int) -> NodeRequest | None:
        """The next request for a node; None: there is none now.

        A node that stays always has an open request, and gets more at any time. Any other node
        answers each request before it gets the next.
        """
        unanswered, stays = self._open.get(node, 0), node in self._staying
        if unanswered and not stays:
            return None
        client = self._behind.get(node)
        waiting = [] if client is None else self._outboxes.pop(client, [])
        quiet = self._clock() - self._asked.get(node, -GREET) >= (STAYING if stays else GREET)
        if not (waiting or quiet or (stays and not unanswered)):
            return None
        self._asked[node] = self._clock()
        self._open[node] = unanswered + 1
        last = any(isinstance(message, Finished) for message, _ in waiting)
        return NodeRequest(node, tuple(frame for _, frame in waiting), last)

    def replied(self, request: NodeRequest, frames: Iterable[bytes], stays: bool = False) -> None:
        """Handle the frames of a node's reply; ``stays``: the node is long-lived."""
        node = request.node
        self._answered(node)
        if stays:
            self._staying.add(node)
        client = self._behind.get(node)
        if client is not None and request.last:
            self.told.add(client)
        for frame in frames:
            sender = self.driver.received(frame)
            if sender is not None:
                self._behind[node] = sender
                self.heard.note(sender)

    def failed(self, request: NodeRequest) -> None:
        """Handle a request without an answer: the node is asked later which client it is."""
        node = request.node
        self._answered(node)
        self._asked[node] = self._clock()
        self._staying.discard(node)
        self._behind.pop(node, None)

    def _answered(self, node: int) -> None:
        self._open[node] = max(0, self._open.get(node, 0) - 1)

    def _send(self, to: int, message: Any, frame: bytes) -> None:
        self._outboxes[to] = driving.queued(self._outboxes.get(to, []), message, frame)


def over_grid(grid: Grid) -> CarryServer:
    """A carrier over a ServerApp's Grid, until the run is finished and all clients know."""
    return lambda machine, make: _served(grid, machine, make)


def _served(
    grid: Grid, machine: ServerMachine, make: Callable[[driving.Out], driving.ServerDriver]
) -> Status:
    from flwr.app import Message, MessageType

    clients = len(machine.federation.members)
    turns = RequestReplyDriver(make, clients)
    begin = time.monotonic()
    turns.driver.connected()
    asked: dict[str, tuple[NodeRequest, float]] = {}  # message → request, when
    nodes: set[int] = set()
    looked, finished = -GREET, None
    pause = LOOKS[0]
    while finished is None or (
        set(range(clients)) - machine.left - turns.told and time.monotonic() - finished < LINGER
    ):
        if time.monotonic() - looked >= 1.0:
            nodes, looked = set(grid.get_node_ids()), time.monotonic()
        pause = min(1.1 * pause, LOOKS[1])
        for request in filter(None, map(turns.request, nodes)):
            pause = LOOKS[0]
            message = Message(
                content=content_of(request.frames),
                dst_node_id=request.node,
                message_type=MessageType.QUERY,
                ttl=PATIENCE,
            )
            for number in grid.push_messages([message]):
                asked[number] = (request, time.monotonic())
        for reply in grid.pull_messages(list(asked)) if asked else ():
            pause = LOOKS[0]
            request, _ = asked.pop(reply.metadata.reply_to_message_id)
            _take(turns, request, reply)
        for number, (request, since) in list(asked.items()):
            if time.monotonic() - since > PATIENCE:
                del asked[number]
                turns.failed(request)
        turns.driver.woken()
        if machine.finished and finished is None:
            finished = time.monotonic()
        time.sleep(pause)
    return status_of(machine, turns.driver, turns.heard, time.monotonic() - begin)


def _take(turns: RequestReplyDriver, request: NodeRequest, reply: Message) -> None:
    if reply.has_error():
        from flwr.common.constant import ErrorCode as Code

        # These errors mean a lost connection: a killed node may have sent half a reply.
        lost = {Code.MESSAGE_UNAVAILABLE, Code.REPLY_MESSAGE_UNAVAILABLE, Code.NODE_UNAVAILABLE}
        if reply.error.code not in lost:
            turns.driver.alarm("flower", f"node {request.node}: {reply.error.reason}")
        turns.failed(request)
        return
    turns.replied(request, frames_of(reply.content) or [], STAYS in reply.content)


# A message's content. Frames are arrays, which Flower splits into chunks: a frame as a long value
# of a ConfigRecord takes ten times as long.


def content_of(frames: Sequence[bytes], stays: bool = False) -> RecordDict:
    """A message's content with these frames, and with the mark of a node that stays."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {f"{k:09d}": Array("uint8", (len(f),), FRAMES, f) for k, f in enumerate(frames)}
    content = RecordDict({FRAMES: ArrayRecord(arrays)})
    if stays:
        content[STAYS] = ConfigRecord({STAYS: True})
    return content


def frames_of(content: RecordDict) -> list[bytes] | None:
    """The frames in a message; None: it is not a federation's message."""
    found = content.array_records.get(FRAMES)
    return None if found is None else [found[key].data for key in sorted(found)]


# The app that a SuperLink gets, beside flower_app.toml: a ServerApp and a ClientApp.


_APPS = """from forethought.jobs.members import client_app, server_app

server = server_app()
client = client_app()
"""


def submit(
    config: Mapping[str, str],
    superlink: str | None = None,
    certificates: Path | None = None,
    *,
    apps: str = _APPS,
    watch: bool = True,
) -> int:
    """Run a federation's ServerApp in a SuperLink, and show its output until it ends.

    After an interrupt here the run continues in the SuperLink: ``flwr stop`` ends it.

    Args:
        config: ``job``, ``keys`` and ``out`` of the server, as paths on the SuperLink's machine.
        superlink: host:port; None: the default connection of the user's own Flower configuration.
        certificates: see :func:`node_stream`.
        apps: source of a module with ``server`` and ``client``. watch: False returns at once.

    Returns:
        The exit status of ``flwr run``.

    Raises:
        FileNotFoundError: Flower is not in this environment. ValueError: see :func:`node_stream`.
    """
    program = Path(sys.executable).with_name("flwr")
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="flower-") as folder:
        app, home = Path(folder) / "app", Path(folder) / "home"
        (app / "carried").mkdir(parents=True)
        shutil.copyfile(Path(__file__).with_name("flower_app.toml"), app / "pyproject.toml")
        (app / "carried" / "__init__.py").write_text("", "utf-8")
        (app / "carried" / "apps.py").write_text(apps, "utf-8")
        command = [str(program), "run", str(app)]
        if superlink is not None:
            _require_tls(superlink, certificates)
            home.mkdir()
            trust = "insecure = true"
            if certificates is not None:
                trust = f"root-certificates = {json.dumps(str(certificates.resolve()))}"
            (home / "config.toml").write_text(
                f'[superlink]\ndefault = "given"\n\n[superlink.given]\n'
                f"address = {json.dumps(superlink)}\n{trust}\n",
                "utf-8",
            )
            environment["FLWR_HOME"] = str(home)
            command.append("given")
        given = Path(folder) / "given.toml"
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in config.items()]
        given.write_text("".join(lines), "utf-8")
        command += ["--run-config", str(given), *(["--stream"] if watch else [])]
        return subprocess.run(command, env=environment, check=False).returncode


def _require_tls(superlink: str, certificates: Path | None) -> None:
    host = superlink.rpartition(":")[0].strip("[]")
    if certificates is None and host not in ("127.0.0.1", "localhost", "::1"):
        raise ValueError(
            f"{host} is another computer: give the file that its SuperLink's certificate is "
            "checked against (--certificates); without one a SuperLink here only is connected to"
        )


# A client that runs in a new process for every message.


def answer_requests(
    frames: Sequence[bytes],
    make: Callable[[driving.Out, driving.Begin], driving.ClientDriver],
    compute: Callable[[Compute], Computed | None],
) -> tuple[driving.ClientDriver, list[bytes]]:
    """Answer one request as a client; computes the updates that it asks for before it returns.

    Args:
        frames: of the request; none: it asks which client this is.
        make, compute: see ``driver`` and ``compute`` of
            :class:`forethought.holders.driving.FederationClient`.

    Returns:
        The driver, and the frames of the reply.
    """
    replies: list[bytes] = []
    asked: list[Compute] = []
    driver = make(lambda to, message, frame: replies.append(frame), asked.append)
    if not frames:
        driver.connected()
    for frame in frames:
        driver.received(frame, SERVER)
    while asked:
        if (done := compute(asked.pop(0))) is not None:
            driver.handle(done)
    return driver, replies


# A long-lived client, which is a node itself.


def node_stream(
    superlink: str, certificates: Path | None = None, node_key: Path | None = None
) -> driving.Connect:
    """A function that opens streams through a SuperLink, with this process as a SuperNode.

    Args:
        superlink: host:port of the SuperLink. certificates: PEM file of the authority that signed
            its certificate; None: no TLS, for a SuperLink on this computer only.
        node_key: file of the private key (elliptic curve, OpenSSH) by which the SuperLink knows
            this node; None: the node registers itself.

    Raises:
        ValueError: the SuperLink is on another computer and ``certificates`` is None.
        ImportError: Flower is not installed.
    """
    import flwr  # noqa: F401

    _require_tls(superlink, certificates)
    return lambda _: _Node(superlink, certificates, node_key)


class _Node:
    """A SuperNode in a thread: takes requests, and answers one when there are frames to send.

    Of two open requests it answers the older one at once, so that at most one stays open.
    """

    def __init__(self, superlink: str, certificates: Path | None, node_key: Path | None) -> None:
        self._superlink, self._certificates, self._key = superlink, certificates, node_key
        self._loop = asyncio.get_running_loop()
        self._come: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._sent, self._taken = asyncio.Event(), asyncio.Event()
        self._going: deque[bytes] = deque()
        self._something = threading.Event()
        self._closing = self._finishing = False
        self._thread = threading.Thread(target=self._run, name="flower-node", daemon=True)

    async def __aenter__(self) -> _Node:
        self._thread.start()
        await self._opened
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        self._something.set()
        await asyncio.to_thread(self._thread.join)

    async def read(self) -> bytes | None:
        return await self._come.get()

    async def write(self, frame: bytes) -> None:
        # The writer waits while long frames are unsent: otherwise it would repeat them meanwhile.
        self._going.append(frame)
        self._taken.clear()
        self._something.set()
        while not self._sent.is_set() and sum(map(len, list(self._going))) > HELD_BYTES:
            await self._taken.wait()
            self._taken.clear()

    async def finish(self) -> None:
        self._finishing = True
        self._something.set()
        await self._sent.wait()

    def _run(self) -> None:
        try:
            with _fleet(self._superlink, self._certificates, self._key) as fleet:
                driving.in_loop(self._loop, self._opened.set_result, None)
                self._take_part(fleet)
        except BaseException as error:
            failed = ConnectionError(f"{self._superlink}: {error}")
            driving.in_loop(self._loop, self._failed, failed)
        driving.in_loop(self._loop, self._come.put_nowait, None)
        driving.in_loop(self._loop, self._sent.set)
        driving.in_loop(self._loop, self._taken.set)

    def _failed(self, error: ConnectionError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def _take_part(self, fleet: _Fleet) -> None:
        waiting: list[Message] = []  # open requests
        pause, begin = LOOKS[0], time.monotonic()
        while not self._closing:
            if time.monotonic() - begin > fleet.heartbeat:
                fleet.beat()
                begin = time.monotonic()
            request = fleet.pull()
            pause = min(1.1 * pause, LOOKS[1])
            if request is not None:
                pause = LOOKS[0]
                frames = frames_of(request.content)
                if frames is None:
                    fleet.reply(request, [])  # the message of another app
                    continue
                # A restarted server has forgotten the requests of its previous run.
                run = request.metadata.run_id
                waiting = [one for one in waiting if one.metadata.run_id == run]
                waiting.append(request)
                for frame in frames:
                    driving.in_loop(self._loop, self._come.put_nowait, frame)
            while len(waiting) > 1 or (waiting and self._going):
                frames = [self._going.popleft() for _ in range(len(self._going))]
                fleet.reply(waiting.pop(0), frames)
                driving.in_loop(self._loop, self._taken.set)
                pause = LOOKS[0]
            if self._finishing and not self._going:
                for one in waiting:
                    fleet.reply(one, [])
                # Flower drops the replies of a node that leaves: the server must poll them first.
                time.sleep(LOOKS[1] + LOOKS[0])
                return
            if request is None:
                self._something.wait(pause)
                self._something.clear()


@contextlib.contextmanager
def _fleet(superlink: str, certificates: Path | None, node_key: Path | None) -> Any:
    """Make this process a node of the SuperLink, until the end of the ``with`` block."""
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        RegisterNodeFleetRequest,
        UnregisterNodeFleetRequest,
    )
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    if node_key is None:
        private, public = generate_key_pairs()
    else:
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        private = load_ssh_private_key(node_key.read_bytes(), None)
        public = private.public_key()
    shown = public_key_to_bytes(public)
    with FleetHttpClient.from_server_address(
        superlink,
        certificates is None,
        None if certificates is None else certificates.read_bytes(),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, public),
        ],
    ) as client:
        if node_key is None:
            client.RegisterNode(RegisterNodeFleetRequest(public_key=shown))
        active = ActivateNodeRequest(public_key=shown, heartbeat_interval=_Fleet.heartbeat * 2)
        node = Node(node_id=client.ActivateNode(active).node_id)
        try:
            yield _Fleet(client, node)
        finally:
            with contextlib.suppress(Exception):  # without heartbeats the node counts as lost
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
                if node_key is None:
                    client.UnregisterNode(UnregisterNodeFleetRequest(node_id=node.node_id))


class _Fleet:
    """Flower's Fleet API, for one node."""

    heartbeat = 15.0

    def __init__(self, client: Any, node: Any) -> None:
        self._client, self._node = client, node

    def beat(self) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        self._client.SendNodeHeartbeat(
            SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=2 * self.heartbeat)
        )

    def pull(self) -> Message | None:
        """The next request, if there is one."""
        from flwr.app import Message
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

        answer = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        run = answer.messages_list[0].metadata.run_id
        tree = answer.message_object_trees[0]

        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)
        confirm = make_confirm_message_received_fn_protobuf(
            self._client.ConfirmMessageReceived, self._node, run
        )
        found: Message = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message)
        found.metadata.__dict__["_message_id"] = tree.object_id
        return found

    def reply(self, request: Message, frames: list[bytes]) -> None:
        """Answer a request."""
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
        )
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf

        reply = Message(content=content_of(frames, stays=True), reply_to=request)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
        answer = self._client.PushMessages(
            PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],
            )
        )
        push = make_push_object_fn_protobuf(
            self._client.PushObject, self._node, request.metadata.run_id, answer.session_id
        )
        for number in answer.objects_to_push:
            push(number, objects[number].deflate())
