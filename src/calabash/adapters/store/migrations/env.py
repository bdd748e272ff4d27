"""Environment script, which Alembic runs: applies the revisions on the connection that the store passes to it."""

from __future__ import annotations

from alembic import context

from calabash.adapters.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
