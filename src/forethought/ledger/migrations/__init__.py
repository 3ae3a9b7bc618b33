"""Versions of the schema of a book's tables, as alembic's scripts.

``versions/vNNNN.py`` upgrades a book from the version before; the numbers have no gaps.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

PLACE = Path(__file__).parent
VERSION_TABLE = "book_form"


def forms() -> list[str]:
    """The schema versions that this version of the library knows, oldest first: "0001", …"""
    return sorted(path.stem[1:] for path in (PLACE / "versions").glob("v*.py"))


def upgrade(connection: Connection) -> None:
    """Upgrade the tables to the newest schema, inside the connection's transaction."""
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(PLACE).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)

    def steps(revision: object, context: object) -> list[object]:
        return list(scripts._upgrade_revs("head", revision))  # type: ignore[arg-type]

    with EnvironmentContext(config, scripts, fn=steps) as environment:
        environment.configure(
            connection=connection, version_table=VERSION_TABLE, transactional_ddl=True
        )
        environment.run_migrations()
