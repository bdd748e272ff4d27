"""Revisions; the file name is the schema version."""
