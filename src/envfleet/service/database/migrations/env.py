"""Alembic runs this, with the connection that `store.migrate` passes."""

from alembic import context

from envfleet.service.database.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
