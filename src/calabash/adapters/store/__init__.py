"""What must survive: the allocation journal, queues, usage records and events, in SQLite or PostgreSQL.

What lives here: the tables, their migrations, and ``Store``, the only object of the product that speaks SQL. SQLite is
the default (write-ahead log, every commit synced); PostgreSQL is chosen by URL; both pass the same tests. A database
written by a newer program is refused, a full disk is a reason and not a crash.
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
