"""Durable state in SQLite or PostgreSQL: allocation journal, queues, usage records, invoices and events.

This package contains the tables, their migrations, and the class ``Store``; no other code executes SQL. SQLite is the
default, with a write-ahead log that is synced to the disk at every commit. PostgreSQL is used if the database URL names
it. Both pass the same tests. A database that a newer program has written is refused. A full disk is reported as an
error with its own reason.
"""

from calabash.adapters.store.database import absolute_url
from calabash.adapters.store.errors import public_url
from calabash.adapters.store.retention import Retention
from calabash.adapters.store.sql import Store, open_store

__all__ = [
    "Retention",
    "Store",
    "absolute_url",
    "open_store",
    "public_url",
]
