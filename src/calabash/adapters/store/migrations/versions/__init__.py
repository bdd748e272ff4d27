"""Revisions of Alembic; the file name of a revision has its schema version."""
