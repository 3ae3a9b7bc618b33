"""A server and clients over connections on 127.0.0.1 that end, fail and begin again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forethought.holders.driving import FederationClient, reconnecting
from forethought.holders.grpc import ConnectionPolicyError, grpc
from trials.parties import federation, last_model, make_client, make_server, prepare

CLIENTS = 2
# Enough on a machine with twenty other things to do; a run takes seconds.
PATIENCE = 240.0


@pytest.mark.parametrize("rule", ["synchronous", "asynchronous"])
def test_in_one_process_with_restarts(rule: str, tmp_path: Path) -> None:
    """Server and clients are ended gracefully in the middle, and go on from what they wrote."""
    rounds, parameters = 30, 10
    roster = prepare(tmp_path, CLIENTS)
    agreed = federation(roster, rule, parameters, rounds)

    async def scenario() -> np.ndarray:
        async with asyncio.timeout(PATIENCE):
            port = 0
            for stage in range(3):
                server = make_server(tmp_path, agreed)
                port = await server.start(f"127.0.0.1:{port}")
                address = f"127.0.0.1:{port}"
                clients = [
                    make_client(tmp_path, agreed, place, address) for place in range(CLIENTS)
                ]
                stop = asyncio.Event()
                tasks = [asyncio.create_task(server.run(stop))]
                tasks += [asyncio.create_task(client.run(stop)) for client in clients]
                while stage < 2 and server.driver.machine.version < 10 * (stage + 1):
                    await asyncio.sleep(0.005)
                if stage < 2:
                    stop.set()
                await asyncio.gather(*tasks)
                assert not server.driver.alarms and not clients[0].driver.alarms
            assert {client.driver.done for client in clients} == {"finished"}
            return server.driver.machine.reported

    found = asyncio.run(scenario())
    np.testing.assert_array_equal(found, last_model(rule, parameters, rounds, CLIENTS))
    assert make_client(tmp_path, agreed, 0, "127.0.0.1:1").driver.ledger.read().updates == rounds


def test_an_error_that_no_other_attempt_mends_ends_the_client(tmp_path: Path) -> None:
    agreed = federation(prepare(tmp_path, CLIENTS), "synchronous", 10, 5)
    driver = make_client(tmp_path, agreed, 0, "127.0.0.1:1").driver

    def refused(_most_bytes: int) -> Any:
        raise ConnectionPolicyError("grpc was loaded before")

    client = FederationClient(refused, lambda _send, _begin: driver, lambda _asked: None)

    async def scenario() -> None:
        task = asyncio.create_task(client.run(asyncio.Event()))
        ended, _ = await asyncio.wait([task], timeout=20)
        task.cancel()
        assert ended
        with pytest.raises(ConnectionPolicyError):
            await task

    asyncio.run(scenario())


def test_connections_that_end_at_once_are_made_ever_less_often() -> None:
    """As of two processes with one client's keys, of which each ends the other's connection."""
    made: list[float] = []

    async def connection() -> None:
        made.append(time.monotonic())

    asyncio.run(reconnecting(connection, (0.01, 10.0), lambda: len(made) == 6))
    assert made[-1] - made[-2] >= 0.08


def test_an_error_in_a_connection_ends_the_client(tmp_path: Path) -> None:
    agreed = federation(prepare(tmp_path, CLIENTS), "synchronous", 10, 5)

    class Broken:
        async def read(self) -> bytes | None:
            raise RuntimeError("a fault in the stream")

        async def write(self, frame: bytes) -> None:
            pass

        async def finish(self) -> None:
            pass

    @contextlib.asynccontextmanager
    async def connect(_most_bytes: int) -> AsyncIterator[Any]:
        yield Broken()

    driver = make_client(tmp_path, agreed, 0, "127.0.0.1:1").driver
    client = FederationClient(connect, lambda _send, _begin: driver, lambda _asked: None)

    async def scenario() -> None:
        async with asyncio.timeout(1.0):
            await client.run(asyncio.Event())

    with pytest.raises(RuntimeError, match="a fault"):
        asyncio.run(scenario())


def test_a_client_that_is_stopped_while_it_computes_commits_what_it_computed(
    tmp_path: Path,
) -> None:
    roster = prepare(tmp_path, CLIENTS)
    agreed = federation(roster, "asynchronous", 10, 30)
    computing, stopped = threading.Event(), threading.Event()

    async def scenario() -> int:
        server = make_server(tmp_path, agreed)
        port = await server.start("127.0.0.1:0")
        client = make_client(tmp_path, agreed, 0, f"127.0.0.1:{port}")
        compute = client.compute

        def slowly(asked: Any) -> Any:
            computing.set()
            stopped.wait(PATIENCE)
            return compute(asked)

        client.compute = slowly
        stop, ended = asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(server.run(ended))
        taking_part = asyncio.create_task(client.run(stop))
        async with asyncio.timeout(PATIENCE):
            await asyncio.to_thread(computing.wait)
            stop.set()
            asyncio.get_running_loop().call_later(
                0.3, stopped.set
            )  # the client has seen it by then
            await taking_part
            ended.set()
            await serving
        return int(client.driver.ledger.read().updates)

    assert asyncio.run(scenario()) == 1
    assert make_client(tmp_path, agreed, 0, "127.0.0.1:1").driver.ledger.read().updates == 1


def test_a_failed_write_ends_the_client_and_nothing_is_sent(tmp_path: Path) -> None:
    """After it the machine is not what its ledger says: no event reaches it any more."""
    roster = prepare(tmp_path, CLIENTS)
    agreed = federation(roster, "synchronous", 10, 30)

    async def scenario() -> None:
        server = make_server(tmp_path, agreed)
        port = await server.start("127.0.0.1:0")
        client = make_client(tmp_path, agreed, 0, f"127.0.0.1:{port}")

        def full(release: Any) -> None:
            raise OSError(28, "No space left on device")

        client.driver.ledger.commit = full  # type: ignore[method-assign]
        ended = asyncio.Event()
        serving = asyncio.create_task(server.run(ended))
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(OSError, match="No space left"):
                await client.run(asyncio.Event())
            ended.set()
            await serving
        assert server.driver.machine.applied.sum() == 0 and not server.driver.alarms

    asyncio.run(scenario())


def test_a_call_that_breaks_as_it_is_ended_does_not_end_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = federation(prepare(tmp_path, 1), "asynchronous", 10, 2)

    async def broken(self: Any) -> None:
        raise grpc.aio.InternalError("the other end has reset the connection")

    monkeypatch.setattr("grpc.aio._call.StreamStreamCall.done_writing", broken)

    async def scenario() -> str | None:
        async with asyncio.timeout(PATIENCE):
            server, ended = make_server(tmp_path, agreed), asyncio.Event()
            port = await server.start("127.0.0.1:0")
            serving = asyncio.create_task(server.run(ended))
            client = make_client(tmp_path, agreed, 0, f"127.0.0.1:{port}")
            await client.run(asyncio.Event())
            ended.set()
            await serving
            return client.driver.done

    assert asyncio.run(scenario()) == "finished"
