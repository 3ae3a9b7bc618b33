"""The first form: entries, and what follows from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    text, number = sa.Text(), sa.BigInteger()
    op.create_table(
        "entries",
        sa.Column("number", number, primary_key=True, autoincrement=False),
        sa.Column("kind", text, nullable=False),
        sa.Column("content", text, nullable=False),
        sa.Column("previous", text, nullable=False, unique=True),
        sa.Column("hash", text, nullable=False, unique=True),
        sa.Column("signature", text),
        sa.Column("call", text, nullable=False, unique=True),
    )
    op.create_table(
        "head",
        sa.Column("id", number, primary_key=True, autoincrement=False),
        sa.Column("number", number, nullable=False),
        sa.Column("hash", text, nullable=False),
        sa.Column("at", text, nullable=False),
    )
    op.create_table(
        "accounts",
        sa.Column("data", text, primary_key=True),
        sa.Column("account", text, nullable=False),
        sa.Column("rule", text, nullable=False),
    )
    op.create_table(
        "reservations",
        sa.Column("number", number, primary_key=True, autoincrement=False),
        sa.Column("data", text, sa.ForeignKey("accounts.data"), nullable=False, index=True),
        sa.Column("charge", text, nullable=False),
        sa.Column("costs", text, nullable=False),
        sa.Column("status", text, nullable=False),
        sa.Column("actor", text, nullable=False),
        sa.Column("purpose", text, nullable=False),
        sa.Column("run", text),
        sa.Column("mark", number, nullable=False),
        sa.Column("released", number),
        sa.Column("at", text, nullable=False),
    )
    op.create_table(
        "sums",
        sa.Column("data", text, sa.ForeignKey("accounts.data"), primary_key=True),
        sa.Column("part", text, primary_key=True),
        sa.Column("sums", text, nullable=False),
        sa.Column("persons", number, nullable=False),
    )
    # A person is in one part of a scheme.
    op.create_table(
        "persons",
        sa.Column("data", text, sa.ForeignKey("accounts.data"), primary_key=True),
        sa.Column("scheme", text, primary_key=True),
        sa.Column("person", sa.LargeBinary(16), primary_key=True),
        sa.Column("part", text, nullable=False),
        sa.Column("entry", number, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("name", text, primary_key=True),
        sa.Column("role", text, nullable=False),
        sa.Column("hash", text, nullable=False, unique=True),
        sa.Column("revoked", sa.Boolean(), nullable=False),
    )
