"""Connections: TLS 1.3 with both certificates pinned, or none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forethought.exchange.keys import Keys, Roster
from forethought.holders.grpc import (
    channel_credentials,
    grpc,
    grpc_stream,
    place_of,
    server_credentials,
)

METHOD = "/test/Who"


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Keys]:
    root = tmp_path_factory.mktemp("members")
    return {name: Keys.make(root / name, name) for name in ("server", "a", "b", "stranger")}


@pytest.fixture(scope="module")
def roster(members: dict[str, Keys]) -> Roster:
    return Roster.of(members["server"].identity, [members[name].identity for name in ("a", "b")])


@contextlib.asynccontextmanager
async def served(keys: Keys, roster: Roster) -> AsyncIterator[int]:
    async def who(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return str(place_of(context, roster)).encode()

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(who)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test", {"Who": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", server_credentials(keys, roster))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def asked(port: int, keys: Keys, roster: Roster) -> str:
    credentials = channel_credentials(keys, roster)
    options = [("grpc.ssl_target_name_override", "server")]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        try:
            return str(await channel.unary_unary(METHOD)(b"", timeout=300), "utf-8")
        except grpc.aio.AioRpcError as error:
            return error.code().name


def test_who_may_connect_and_as_whom(members: dict[str, Keys], roster: Roster) -> None:
    async def scenario() -> list[str]:
        async with served(members["server"], roster) as port:
            return [
                await asked(port, members[name], roster)
                for name in ("a", "b", "server", "stranger")
            ]

    assert asyncio.run(scenario()) == ["0", "1", "UNAVAILABLE", "UNAVAILABLE"]


def test_a_client_talks_to_its_own_server_only(members: dict[str, Keys], roster: Roster) -> None:
    """Neither a stranger nor another member can stand where the server should be."""

    async def scenario(name: str) -> str:
        async with served(members[name], roster) as port:
            return await asked(port, members["a"], roster)

    assert [asyncio.run(scenario(name)) for name in ("stranger", "b")] == ["UNAVAILABLE"] * 2


@pytest.mark.slow
def test_grpc_that_was_loaded_too_early_is_noticed(tmp_path: Path) -> None:
    """It would have read another list of ciphers, and would speak TLS 1.2."""
    program = """
import sys
sys.path[:0] = {path!r}
{early}
from pathlib import Path
from forethought.exchange.keys import Keys
from forethought.exchange.keys import Roster
from forethought.holders.grpc import ConnectionPolicyError, channel_credentials
keys = [Keys.make(Path({folder!r}) / name, name) for name in ("server", "a")]
try:
    channel_credentials(keys[1], Roster.of(keys[0].identity, [keys[1].identity]))
except ConnectionPolicyError as error:
    print(error)
import os
assert "GRPC_VERBOSITY" not in os.environ  # what is silent here is silent in all this starts
"""
    for early in ("import grpc", "import forethought.holders.grpc, grpc"):
        folder = str(tmp_path / early.split()[1])
        text = program.format(path=sys.path, early=early, folder=folder)
        done = subprocess.run(
            [sys.executable, "-c", text],
            capture_output=True,
            text=True,
            timeout=120,
            env={key: value for key, value in os.environ.items() if "GRPC" not in key},
        )
        assert done.returncode == 0, done.stderr
        assert ("loaded before" in done.stdout) == (early == "import grpc")


def test_nothing_below_tls_1_3_and_nothing_without_a_certificate(
    members: dict[str, Keys], roster: Roster, tmp_path: Path
) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(members["a"].connection + members["a"].identity.certificate.encode())

    def handshake(port: int, version: ssl.TLSVersion, certificate: bool) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=roster.server.certificate)
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        if certificate:
            context.load_cert_chain(own)
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            try:
                with context.wrap_socket(connection, server_hostname="server") as secure:
                    # In TLS 1.3 a server refuses a client after the client's side is done.
                    return str(secure.version()) if secure.recv(9) else "closed"
            except (ssl.SSLError, OSError) as error:
                return type(error).__name__

    async def scenario() -> list[str]:
        async with served(members["server"], roster) as port:
            return [
                await asyncio.to_thread(handshake, port, version, certificate)
                for version, certificate in (
                    (ssl.TLSVersion.TLSv1_3, True),
                    (ssl.TLSVersion.TLSv1_3, False),
                    (ssl.TLSVersion.TLSv1_2, True),
                )
            ]

    found = asyncio.run(scenario())
    assert found[0] == "TLSv1.3"
    assert "TLSv1" not in found[1] and "TLSv1" not in found[2]


def test_a_client_is_told_why_it_cannot_connect(
    members: dict[str, Keys], roster: Roster, tmp_path: Path
) -> None:
    async def said(address: str, keys: Keys, known: Roster) -> str:
        with pytest.raises(ConnectionError) as refused:
            async with grpc_stream(known, keys, address)(1 << 20):
                pass
        return str(refused.value)

    others = [Keys.make(tmp_path / name, name).identity for name in ("server", "a")]

    async def scenario() -> list[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = f"127.0.0.1:{free.getsockname()[1]}"
        async with served(members["server"], roster) as port:
            here = f"127.0.0.1:{port}"
            return [
                await said(nobody, members["a"], roster),
                await said(here, members["a"], Roster.of(others[0], [others[1]])),
                await said(here, members["stranger"], roster),
                # The resolver itself knows that there is none of these, and asks nobody.
                await said("nobody.onion:8750", members["a"], roster),
            ]

    alone, another, stranger, nameless = asyncio.run(scenario())
    assert "no host of this name" in nameless
    assert "nobody answers" in alone and "127.0.0.1:" in alone
    assert "a stranger to this roster" in another
    assert "does not know this member" in stranger
