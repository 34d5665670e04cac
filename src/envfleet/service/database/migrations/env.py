"""Alembic runs this, with the connection that `store.migrate` passes."""

from alembic import context

from envfleet.service.database.models import Base

# In the transaction that `store.migrate` has begun, on SQLite too, which alembic would not assume.
connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
