"""Alembic's scripts: one revision per schema version, applied when the store is opened."""
