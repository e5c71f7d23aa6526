"""The entry point of Alembic. ``gpuqueue db upgrade`` passes a connection in; ``alembic`` itself opens one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import context

from gpuqueue.history import indexes, text_index
from gpuqueue.history.connect import open_engine, writing
from gpuqueue.settings.settings import Settings

if TYPE_CHECKING:
    import sqlalchemy as sa


def migrate(connection: sa.Connection) -> None:
    """Run the migrations in the transaction of *connection*."""
    context.configure(
        connection=connection,
        target_metadata=indexes.METADATA,
        compare_type=True,
        # SQLite alters a table only by copying it.
        render_as_batch=connection.dialect.name == "sqlite",
        # The text index is not declared as a table, and differs between the databases.
        include_name=lambda name, _kind, _parents: not text_index.belongs(name),
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Migrate over the connection that was passed in, or over a new one."""
    handed_in = context.config.attributes.get("connection")
    if handed_in is not None:
        migrate(handed_in)
        return
    engine = open_engine(Settings.load().database_url, foreign_keys=False, make=True)
    try:
        with writing(engine) as connection:
            migrate(connection)
    finally:
        engine.dispose()


main()
