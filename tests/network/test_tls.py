"""Connections: TLS 1.3 with both certificates pinned, or none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forethought.exchange.keys import Keys
from forethought.exchange.roster import Roster
from forethought.network.tls import channel_credentials, place_of, server_credentials

import grpc  # isort: skip (after tls, which sets its ciphers)

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
            return str(await channel.unary_unary(METHOD)(b"", timeout=30), "utf-8")
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
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
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
