"""Where the controller reads which networks there should be, and tells what became of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from calabash.api.changes import WAIT_S_MAX
from calabash.api.networks import NetworkReport, NetworkReports, NetworkSnapshot
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind, NetworkObject
from calabash.net.objects.specs import decode
from calabash.seams.pool.client import ApiClient, quoted

REPORTS_AT_ONCE = 1000
_LOOK_S = 0.2
Key = tuple[NetworkKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNews:
    """What changed in the book: ``whole``: ``items`` are all there are. Each comes with its generation."""

    revision: int
    whole: bool
    items: Sequence[tuple[NetworkObject, int]] = ()
    removed: Sequence[Key] = ()


class NetworkSource(Protocol):
    """A book of networks somewhere."""

    def news(self, after: int, wait_s: float) -> NetworkNews:
        """What changed after a revision, -1: everything; waits as long for something. Raises CalabashError."""

    def report(self, reports: Sequence[NetworkReport]) -> None:
        """Tell what is known of objects. Raises CalabashError."""


class PoolBook:
    """The book of a pool, by its API."""

    def __init__(self, pool: ApiClient) -> None:
        self._pool = pool

    def news(self, after: int, wait_s: float) -> NetworkNews:
        wait_s = min(wait_s, WAIT_S_MAX)
        path = f"/v1/networks/snapshot?after={after}&wait={wait_s:g}&changes=true"
        return read_news(self._pool.get(path, timeout_s=wait_s + 30.0))

    def report(self, reports: Sequence[NetworkReport]) -> None:
        for at in range(0, len(reports), REPORTS_AT_ONCE):
            told = NetworkReports(items=list(reports[at : at + REPORTS_AT_ONCE]))
            self._pool.put("/v1/networks/status", msgspec.to_builtins(told))

    def secret(self, name: str) -> bytes | None:
        """The certificate ``VPC/NAME`` with its key, PEM; None where there is none. Raises CalabashError."""
        try:
            found = self._pool.get(f"/v1/networks/certificates/key?name={quoted(name)}")
        except CalabashError as error:
            if error.reason is Reason.NOT_FOUND:
                return None
            raise
        return f"{found['certificate'].rstrip()}\n{found['key'].rstrip()}\n".encode()


class FileBook:
    """A book in a file, in the shape of the pool's snapshot; for trying things without a pool. What is reported is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reported: dict[Key, NetworkReport] = {}

    def news(self, after: int, wait_s: float) -> NetworkNews:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                found = read_news(json.loads(self._path.read_bytes()))
            except (OSError, ValueError) as error:
                raise CalabashError(f"{self._path} cannot be read: {error}", reason=Reason.BAD_FILE) from error
            if found.revision != after:
                return found
            if time.monotonic() > deadline:
                return NetworkNews(revision=after, whole=False)
            time.sleep(_LOOK_S)

    def report(self, reports: Sequence[NetworkReport]) -> None:
        self.reported.update(((report.kind, report.name), report) for report in reports)


def read_news(told: Mapping[str, Any]) -> NetworkNews:
    """A snapshot as the API answers it. Raises CalabashError for what is none."""
    try:
        snapshot = msgspec.convert(told, NetworkSnapshot)
    except msgspec.ValidationError as error:
        raise CalabashError(f"a snapshot of networks cannot be read: {error}", reason=Reason.UNSUPPORTED) from error
    return NetworkNews(
        revision=snapshot.revision,
        whole=snapshot.whole,
        items=[(decode(item.kind, item.name, item.spec), item.generation) for item in snapshot.objects],
        removed=[(key.kind, key.name) for key in snapshot.removed],
    )
