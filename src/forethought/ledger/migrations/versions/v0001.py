"""The first schema: the entries, and tables of the state that follows from them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
OF_ACCOUNT = "accounts.data"


def key(name: str, kind: Any = sa.Text, *more: Any) -> sa.Column[Any]:
    """A column of a table's primary key."""
    return sa.Column(name, kind, *more, primary_key=True, autoincrement=False)


def texts(*names: str, unique: bool | None = None) -> list[sa.Column[Any]]:
    """Text columns that are not null."""
    return [sa.Column(name, sa.Text, nullable=False, unique=unique) for name in names]


def number(name: str) -> sa.Column[Any]:
    """An integer column that is not null."""
    return sa.Column(name, sa.BigInteger, nullable=False)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "entries",
        key("number", sa.BigInteger),
        *texts("kind", "content"),
        *texts("previous", "hash", "call", unique=True),
        sa.Column("signature", sa.Text),
    )
    op.create_table("head", key("id", sa.BigInteger), number("number"), *texts("hash", "at"))
    op.create_table("accounts", key("data"), *texts("account", "rule"))
    op.create_table(
        "reservations",
        key("number", sa.BigInteger),
        sa.Column("data", sa.Text, sa.ForeignKey(OF_ACCOUNT), nullable=False, index=True),
        *texts("charge", "costs", "status", "actor", "purpose"),
        sa.Column("run", sa.Text),
        number("mark"),
        sa.Column("released", sa.BigInteger),
        *texts("at"),
    )
    account = sa.ForeignKey(OF_ACCOUNT)
    op.create_table(
        "sums", key("data", sa.Text, account), key("part"), *texts("sums"), number("persons")
    )
    op.create_table(
        "persons",
        key("data", sa.Text, sa.ForeignKey(OF_ACCOUNT)),
        *(key("scheme"), key("person", sa.LargeBinary(16))),
        *texts("part"),
        number("entry"),
    )
    op.create_table(
        "tokens",
        key("name"),
        *texts("role"),
        *texts("hash", unique=True),
        sa.Column("revoked", sa.Boolean, nullable=False),
    )
