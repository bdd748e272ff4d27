"""Durable state in SQLite or PostgreSQL: allocation journal, queues, usage records, invoices and events.

The tables, their migrations, and ``Store``; no other code executes SQL. SQLite is the default (write-ahead log, every
commit
synced); PostgreSQL is chosen by URL; both pass the same tests. A database written by a newer program is refused, and a
full
disk is reported as a reason.
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
