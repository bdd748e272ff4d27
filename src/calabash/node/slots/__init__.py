"""Slots: the directory and the shared-memory pages of one allocation."""
