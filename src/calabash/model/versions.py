"""Versions of the product and of its formats that work together, and the errors for those that do not.

Programs of different versions meet during an upgrade: a command and a pool, a running program and the pool that was
started after it, a pool and the database of the previous one, a planner and the agents of nodes. What they exchange has a
format with a number of its own, declared in ``FORMATS``. Each reader checks the number before it changes anything.
Programs that call each other directly state the version of the product instead.

``docs/reference/versions.md`` is generated from this module. It is imported by the arbiter, whose start is short, so it needs
little; :mod:`calabash.model.stated_version` reads versions in JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import calabash
from calabash.model.errors import CalabashError, Reason

_PRODUCT = re.compile(r"(\d{1,6})\.(\d{1,6})(?![\d])[\w.+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Format of data that programs of several versions read and write.

    Args:
        name: what has the number, in the singular, as in "schema".
        oldest: oldest version that this version of the product reads.
        newest: newest version that it reads. It never writes a newer one.
        data: the data, for the reference page.
        reader: the programs that check the version, and what they do with an unsupported one, for the reference page.
        hint: the next step of a user whose data has an unsupported version.
        reason: reason code of the error.
    """

    name: str
    oldest: int
    newest: int
    data: str
    reader: str
    hint: str
    reason: Reason = Reason.VERSION_MISMATCH

    @property
    def supported(self) -> str:
        """The supported versions as text: ``1 to 3``, or ``1``."""
        return f"{self.oldest} to {self.newest}" if self.oldest < self.newest else f"{self.newest}"

    def require(self, found: int, owner: str) -> None:
        """Raise CalabashError if ``found`` is not supported.

        Args:
            owner: the object that has the version, as in "database sqlite:///pool.db".
        """
        if not self.oldest <= found <= self.newest:
            raise CalabashError(
                f"{owner} has {self.name} {found}; calabash {calabash.__version__} supports {self.name} {self.supported}",
                reason=self.reason,
                hint=self.hint,
            )


JOURNAL = Format(
    name="schema",
    oldest=1,
    newest=15,
    data="database of a pool, of a node's agent and of the server of a cluster",
    reader="the program that opens it at its start; an older schema is migrated, a newer one is refused unchanged",
    hint="use the newer calabash that wrote it, or another database with --db",
    reason=Reason.STORE_NEWER,
)
BACKUP = Format(
    name="format",
    oldest=1,
    newest=1,
    data="file of `calabash backup create`, which also states its schema",
    reader="`calabash backup restore`, before the database is replaced; an older schema is migrated",
    hint="use the newer calabash that wrote it",
    reason=Reason.STORE_NEWER,
)
SLOT_PAGES = Format(
    name="page version",
    oldest=1,
    newest=2,
    data="limits page and usage page of a slot; a page has the lowest version that can express its contents",
    reader="the preloaded library, which then refuses the device to the program; a pool or agent at its start, before it"
    " adopts allocations",
    hint="start the calabash that granted the allocation, or end its programs before you change the version",
)
POD_REQUEST = Format(
    name="version",
    oldest=1,
    newest=1,
    data="annotation `calabash.dev/request` of a pod, written by admission",
    reader="the planner: the pod waits with the error in its condition",
    hint="upgrade the planner and the agents to the version of admission",
)
POD_PLAN = Format(
    name="version",
    oldest=1,
    newest=1,
    data="annotation `calabash.dev/plan` of a pod, written by the planner",
    reader="the agent of the node: the container is not started, and the kubelet tries again",
    hint="upgrade the agent of the node to the version of the planner",
)
GANG_MEMBERSHIP = Format(
    name="version",
    oldest=1,
    newest=1,
    data="annotation `calabash.dev/gang-member` of a pod, written by admission",
    reader="the planner: a pod without devices waits with the error in its condition",
    hint="upgrade the planner to the version of admission",
)
USAGE_BATCH = Format(
    name="version",
    oldest=1,
    newest=1,
    data="usage records that agents send to the server of a cluster",
    reader="the server: the agent keeps the records and sends them again",
    hint="upgrade the server of the cluster before the agents of its nodes",
)

FORMATS = (JOURNAL, BACKUP, SLOT_PAGES, POD_REQUEST, POD_PLAN, GANG_MEMBERSHIP, USAGE_BATCH)


def minor_version(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a product version; None if the text is not a version."""
    found = _PRODUCT.fullmatch(version)
    return (int(found[1]), int(found[2])) if found else None


def require_client(client: str, *, server: str) -> None:
    """Raise VERSION_MISMATCH if a client of version ``client`` cannot call a server of this version.

    Both must have the same minor version.

    Args:
        server: name of the server in the error, as in "the pool".
    """
    own = minor_version(calabash.__version__)
    if minor_version(client) != own:
        major, minor = own or (0, 0)
        raise CalabashError(
            f"the client is calabash {client[:32]}; {server} is calabash {calabash.__version__} and supports clients of"
            f" versions {major}.{minor}.x",
            reason=Reason.VERSION_MISMATCH,
            hint=f"use a client of version {major}.{minor}.x, or restart {server} with the version of the client",
        )


def agent_error(agent: str, *, node: str) -> str:
    """Return why a planner of this version does not plan on a node whose agent has version ``agent``; "" if it does.

    The agent must have the minor version of the planner, or the one before it. Text that is not a version is accepted.
    """
    own, found = minor_version(calabash.__version__), minor_version(agent)
    if own is None or found is None or found in (own, (own[0], own[1] - 1)):
        return ""
    return (
        f"the agent of node {node} is calabash {agent}, and planner {calabash.__version__} supports agents of versions"
        f" {own[0]}.{max(0, own[1] - 1)}.x to {own[0]}.{own[1]}.x; hint: upgrade the agents with the planner, by one minor"
        " version at a time"
    )
