"""Page of the versions that work together (docs/reference/versions.md), from ``model/versions.py``."""

from __future__ import annotations

import re
from pathlib import Path

import calabash
from calabash.api.client_version import ANY_VERSION
from calabash.api.endpoints import VERSION_HEADER
from calabash.kubernetes.objects.names import VERSION as KINDS
from calabash.model.versions import FORMATS, minor_version

ROOT = Path(__file__).resolve().parent.parent
_WIRE = re.compile(r"^#define CB_WIRE_VERSION (\d+)u$", re.MULTILINE)

_PROGRAMS = (
    (
        "command and pool, command and address of the console (`--server`), command and server of remote devices",
        "their minor versions are equal: {minor}.x",
        "the pool or server, by the header `{header}` of each request",
    ),
    (
        "server of remote devices and pool",
        "their minor versions are equal",
        "the pool",
    ),
    (
        "planner and agents of a cluster",
        "the agent has the minor version of the planner, or the one before: {before}.x to {minor}.x",
        "the planner: it places no pod on another node, and says so in the condition of pods that wait",
    ),
    (
        "program on a remote device and worker",
        "they speak the same protocol: {wire}",
        "the worker, at the first command of the program",
    ),
)

_PAGE = """\
# Versions that work together

During an upgrade, programs of different versions meet. This page says which ones work together, who checks that, and
what happens to the others. It is generated from `src/calabash/model/versions.py` of version {version}. An error names
the object, the version that was found, the supported versions, and what to do. Its reason is `version_mismatch`, or
`store_newer` for a database or a backup.

## Programs

| programs | work together if | checked by |
|---|---|---|
{programs}

A request without the header is served: other programs may use the API, whose meaning does not change below `/v1`.
Requests that show or stop a server, and those that keep or end what it has granted, are served for each version, so
that an upgrade of the pool or of the server disturbs no program that an older command started:

{any_version}

## Data

Each kind of data has a number of its own. A program reads the versions in the table and never writes a newer one.

| data | {version} reads | checked by |
|---|---|---|
{formats}

Objects in the API server have the version `calabash.dev/{kinds}`, which is the only one. A newer definition accepts
older objects.

## Upgrade

[Upgrade a pool](../how-to/upgrade-a-pool.md) has the steps. The new pool adopts the allocations: their programs keep the
library and the pages with which they began, and the journal is migrated. A test does this with 20 running programs
(`tests/daemons/test_upgrade.py`). [Kubernetes](../how-to/upgrade-kubernetes.md) has a page of its own.

## Downgrade

A pool or an agent checks the journal first and the slots second, and changes nothing if one of them has a newer version
than it supports: it ends with the error, and the programs keep their limits. A journal of the same schema can be used
by an older version again. There is no migration to an older schema: [restore a backup](../how-to/back-up-the-pool.md)
that the older version made, or start the newer version again.
"""


def versions_page() -> str:
    """Return the page."""
    major, minor = minor_version(calabash.__version__) or (0, 0)
    wire = _WIRE.search((ROOT / "native" / "remote" / "wire" / "frame.h").read_text())
    assert wire is not None
    values = {
        "version": calabash.__version__,
        "minor": f"{major}.{minor}",
        "before": f"{major}.{max(0, minor - 1)}",
        "header": VERSION_HEADER,
        "wire": wire[1],
        "kinds": KINDS,
        "any_version": "\n".join(
            f"* `{method} {path}`" for method, path in sorted(ANY_VERSION, key=lambda one: one[::-1])
        ),
        "formats": "\n".join(f"| {one.data} | {one.name} {one.supported} | {one.reader} |" for one in FORMATS),
        "programs": "\n".join(f"| {' | '.join(row)} |" for row in _PROGRAMS),
    }
    values["programs"] = values["programs"].format_map(values)
    return _PAGE.format_map(values)
