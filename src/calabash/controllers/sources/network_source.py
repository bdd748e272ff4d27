"""Sources of networks for the controller, and the receivers of its status reports: the API of a pool, or a file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from calabash.adapters.pool.client import ApiClient
from calabash.api import endpoints
from calabash.api.changes import WAIT_S_MAX
from calabash.api.networks import NetworkReport, NetworkReports, NetworkSnapshot
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind, NetworkObject
from calabash.net.objects.specs import decode

REPORTS_AT_ONCE = 1000
_POLL_S = 0.2
Key = tuple[NetworkKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkUpdate:
    """Change of the store of networks.

    Args:
        revision: revision of the store after the change.
        whole: True if ``items`` are all objects of the store, not only the changed ones.
        items: new or changed objects, each with its generation.
        removed: kind and name of removed objects.
    """

    revision: int
    whole: bool
    items: Sequence[tuple[NetworkObject, int]] = ()
    removed: Sequence[Key] = ()


class NetworkSource(Protocol):
    """Source of the network objects that a controller configures, and recipient of its status reports."""

    def fetch_update(self, after: int, wait_s: float) -> NetworkUpdate:
        """Return the changes after a revision; wait up to ``wait_s`` seconds for one. Raises CalabashError.

        Args:
            after: revision that the caller knows; -1 returns all objects.
        """

    def report(self, reports: Sequence[NetworkReport]) -> None:
        """Send status reports of objects. Raises CalabashError."""


class PoolNetworks:
    """Networks of a pool, by its API."""

    def __init__(self, pool: ApiClient) -> None:
        self._pool = pool

    def fetch_update(self, after: int, wait_s: float) -> NetworkUpdate:
        wait_s = min(wait_s, WAIT_S_MAX)
        query = {"after": after, "wait": f"{wait_s:g}", "changes": "true"}
        return decode_snapshot(self._pool.send(endpoints.SHOW_NETWORK_SNAPSHOT, query=query, timeout_s=wait_s + 30.0))

    def report(self, reports: Sequence[NetworkReport]) -> None:
        for at in range(0, len(reports), REPORTS_AT_ONCE):
            batch = NetworkReports(items=list(reports[at : at + REPORTS_AT_ONCE]))
            self._pool.send(endpoints.REPORT_NETWORK_STATUS, body=msgspec.to_builtins(batch))

    def secret(self, name: str) -> bytes | None:
        """Return certificate and key ``VPC/NAME`` as PEM, or None. Raises CalabashError."""
        try:
            found = self._pool.send(endpoints.SHOW_CERTIFICATE_KEY, query={"name": name})
        except CalabashError as error:
            if error.reason is Reason.NOT_FOUND:
                return None
            raise
        return f"{found['certificate'].rstrip()}\n{found['key'].rstrip()}\n".encode()


class NetworksFile:
    """Networks in a file in the format of the pool's snapshot, for use without a pool. Keeps the reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reported: dict[Key, NetworkReport] = {}

    def fetch_update(self, after: int, wait_s: float) -> NetworkUpdate:
        """Read the file until its revision differs from ``after``, at most ``wait_s`` seconds.

        Raises CalabashError (BAD_FILE).
        """
        deadline = time.monotonic() + wait_s
        while True:
            try:
                found = decode_snapshot(json.loads(self._path.read_bytes()))
            except (OSError, ValueError) as error:
                raise CalabashError(f"{self._path} cannot be read: {error}", reason=Reason.BAD_FILE) from error
            if found.revision != after:
                return found
            if time.monotonic() > deadline:
                return NetworkUpdate(revision=after, whole=False)
            time.sleep(_POLL_S)

    def report(self, reports: Sequence[NetworkReport]) -> None:
        self.reported.update(((report.kind, report.name), report) for report in reports)


def decode_snapshot(reply: Mapping[str, Any]) -> NetworkUpdate:
    """Decode a snapshot of the API. Raises CalabashError (UNSUPPORTED) if it is invalid."""
    try:
        snapshot = msgspec.convert(reply, NetworkSnapshot)
    except msgspec.ValidationError as error:
        raise CalabashError(f"a snapshot of networks cannot be read: {error}", reason=Reason.UNSUPPORTED) from error
    return NetworkUpdate(
        revision=snapshot.revision,
        whole=snapshot.whole,
        items=[(decode(item.kind, item.name, item.spec), item.generation) for item in snapshot.objects],
        removed=[(key.kind, key.name) for key in snapshot.removed],
    )
