"""The first schema: the entries, and tables of the state that follows from them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

revision = "0001"
down_revision = None


def _key(name: str, kind: Any = sa.Text, *more: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, *more, primary_key=True, autoincrement=False)


def _texts(*names: str, unique: bool | None = None) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False, unique=unique) for name in names]


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=False)


TABLES = sa.MetaData()
sa.Table(
    "entries",
    TABLES,
    _key("number", sa.BigInteger),
    *_texts("kind", "content"),
    *_texts("previous", "hash", "call", unique=True),
    sa.Column("signature", sa.Text),
)
# One row, of the newest entry; every change locks it.
sa.Table("head", TABLES, _key("id", sa.BigInteger), _number("number"), *_texts("hash", "at"))
sa.Table("accounts", TABLES, _key("data"), *_texts("account", "rule"))
sa.Table(
    "reservations",
    TABLES,
    _key("number", sa.BigInteger),
    sa.Column("data", sa.Text, sa.ForeignKey("accounts.data"), nullable=False, index=True),
    *_texts("charge", "costs", "status", "actor", "purpose"),
    sa.Column("run", sa.Text),
    _number("mark"),
    sa.Column("released", sa.BigInteger),
    *_texts("at"),
)
sa.Table(
    "sums",
    TABLES,
    _key("data", sa.Text, sa.ForeignKey("accounts.data")),
    _key("part"),
    *_texts("sums"),
    _number("persons"),
)
# The primary key ensures that a person is in one part of a scheme only.
sa.Table(
    "persons",
    TABLES,
    _key("data", sa.Text, sa.ForeignKey("accounts.data")),
    _key("scheme"),
    _key("person", sa.LargeBinary(16)),
    *_texts("part"),
    _number("entry"),
)
sa.Table(
    "tokens",
    TABLES,
    _key("name"),
    *_texts("role"),
    *_texts("hash", unique=True),
    sa.Column("revoked", sa.Boolean, nullable=False),
)


def upgrade() -> None:
    """Make the tables."""
    from alembic import op

    TABLES.create_all(op.get_bind())
