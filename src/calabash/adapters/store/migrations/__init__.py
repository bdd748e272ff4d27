"""Migration scripts for Alembic: one revision for each schema version, applied when the store is opened."""
