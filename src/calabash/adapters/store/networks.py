"""Network objects in the database: plain data with a common revision, and certificates of load balancers.

A change is one transaction that also increments the revision. The caller names the revision that it has read. If the
stored revision is another one, nothing is written, so that one of two concurrent writers must decide again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind

_O, _R, _C = tables.network_objects, tables.network_revision, tables.network_certificates

Key = tuple[str, str]  # kind, name


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNetworkObject:
    """Network object; ``applied`` is True if a file of objects created it."""

    kind: str
    name: str
    tenant: str
    generation: int
    spec: Mapping[str, Any]
    applied: bool = False
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCertificate:
    """Certificate of a load balancer, named ``VPC/NAME``: chain and private key, both as PEM text."""

    name: str
    certificate: str
    key: str
    changed_at: float

    def __repr__(self) -> str:
        return f"StoredCertificate(name={self.name!r})"  # must not show the private key, for example in logs


class NetworkTables:
    """Network tables. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self) -> tuple[list[StoredNetworkObject], int]:
        """Return all objects and their revision."""
        with self._database.snapshot() as connection:
            revision = connection.execute(sa.select(_R.c.revision)).scalar_one_or_none()
            rows = connection.execute(sa.select(_O).order_by(_O.c.kind, _O.c.name)).mappings().all()
        return [StoredNetworkObject(**row) for row in rows], int(revision or 0)

    def revision(self) -> int:
        """Return the current revision of all objects."""
        with self._database.reading() as connection:
            return int(connection.execute(sa.select(_R.c.revision)).scalar_one_or_none() or 0)

    def change(
        self, puts: Sequence[StoredNetworkObject], removed: Sequence[Key], *, before: int, revision: int
    ) -> None:
        """Write objects and remove others. The status of an existing object is not changed.

        Args:
            puts: objects to create or replace.
            removed: keys of objects to remove.
            before: revision that the caller has read.
            revision: new revision.

        Raises CalabashError(CONFLICT) if the stored revision is no longer ``before``.
        """
        with self._database.transaction() as connection:
            connection.execute(self._database.insert_or_ignore(_R, ["id"]).values(id=1, revision=0))
            moved = sa.update(_R).where(_R.c.id == 1, _R.c.revision == before).values(revision=revision)
            if connection.execute(moved).rowcount != 1:
                raise CalabashError(
                    f"the networks are not at revision {before} any more", reason=Reason.CONFLICT, hint="ask again"
                )
            for key in removed:
                connection.execute(sa.delete(_O).where(*_is(key)))
                if key[0] == NetworkKind.VPC:  # a later VPC of the same name must not find its keys
                    connection.execute(sa.delete(_C).where(_C.c.name.startswith(f"{key[1]}/", autoescape=True)))
            for item in puts:
                values = {"tenant": item.tenant, "generation": item.generation, "applied": item.applied}
                values |= {"spec": dict(item.spec)}
                there = sa.update(_O).where(*_is((item.kind, item.name))).values(values)
                if connection.execute(there).rowcount == 0:
                    key_values = {"kind": item.kind, "name": item.name, "status": dict(item.status)}
                    connection.execute(sa.insert(_O).values(values | key_values))

    def report(self, statuses: Mapping[Key, Mapping[str, Any]]) -> None:
        """Replace the status of each object in ``statuses``; objects that do not exist are ignored."""
        with self._database.transaction() as connection:
            for key, status in statuses.items():
                connection.execute(sa.update(_O).where(*_is(key)).values(status=dict(status)))

    # -- certificates ------------------------------------------------------------------------------------------

    def certificates(self) -> list[StoredCertificate]:
        """Return all certificates by name."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(_C).order_by(_C.c.name)).mappings().all()
        return [StoredCertificate(**row) for row in rows]

    def put_certificate(self, made: StoredCertificate) -> None:
        """Create or replace a certificate."""
        values = {"certificate": made.certificate, "key": made.key, "changed_at": made.changed_at}
        with self._database.transaction() as connection:
            if connection.execute(sa.update(_C).where(_C.c.name == made.name).values(values)).rowcount == 0:
                connection.execute(sa.insert(_C).values(values | {"name": made.name}))

    def delete_certificate(self, name: str) -> bool:
        """Delete a certificate; return False if it does not exist."""
        with self._database.transaction() as connection:
            return connection.execute(sa.delete(_C).where(_C.c.name == name)).rowcount > 0


def _is(key: Key) -> tuple[sa.ColumnElement[bool], ...]:
    return _O.c.kind == key[0], _O.c.name == key[1]
