"""Shapes of tenant networks: objects as in YAML (``kind``, ``name``, ``spec``), what is known of them, and all of them at
once for the program that carries them out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from calabash.api.changes import WAIT_S_MAX
from calabash.api.replies import Reply
from calabash.model.network import NetworkKind
from calabash.model.network_status import ConditionKind

DOCUMENTS_MAX = 2000
REPORTED_MAX = 5000
PEM_CHARACTERS_MAX = 24_000
PATH = "/v1/networks"

Path = Annotated[str, Meta(min_length=1, max_length=128, description="like `red`, `red/a` or `red/a/web1`")]
Word = Annotated[str, Meta(max_length=64)]
Spec = Annotated[dict[str, Any], Meta(description="the fields of the kind; see the page of tenant networks")]


class NetworkOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """An object as it is wanted; what is left out is allocated or has its default."""

    kind: NetworkKind
    name: Path
    spec: Spec = {}
    new: Annotated[bool, Meta(description="409 when it is there and not the same")] = False
    generation: Annotated[
        int, Meta(ge=0, lt=1 << 62, description="409 unless the object has this generation; 0: whatever it has")
    ] = 0


class NetworkDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One object of a file."""

    kind: Annotated[str, Meta(max_length=64, description="`vpc`, `subnet`, `port`, ...")]
    name: Annotated[str, Meta(max_length=200)]
    spec: Spec = {}


class NetworkFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Objects that are to be there, all of them or, where one cannot be, none."""

    documents: Annotated[list[NetworkDocument], Meta(max_length=DOCUMENTS_MAX)]
    prune: Annotated[
        bool,
        Meta(
            description="remove what an earlier file made and this one has not, in the VPCs that are documents of this one"
        ),
    ] = False
    dry_run: Annotated[bool, Meta(description="change nothing, only say what would be")] = False


class NetworkPage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which objects, in the query string."""

    kind: Annotated[NetworkKind, Meta(description="left out: all kinds")] | None = None
    vpc: Annotated[str, Meta(max_length=64, description="the VPC that they are of; empty: of any")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="items at most")] = 1000
    after: Annotated[str, Meta(max_length=256, description="`next` of the page before")] = ""


class NetworkName(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which object, in the query string."""

    name: Path


class NetworkRemoval(NetworkName, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which object is to go, in the query string."""

    cascade: Annotated[bool, Meta(description="with everything that is in it, of a VPC or a subnet")] = False


class NetworkConditionView(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``holds`` null: not known. ``reason`` is a stable word; ``since_s`` the time of the last change."""

    kind: ConditionKind
    holds: bool | None
    reason: Word = ""
    message: Annotated[str, Meta(max_length=500)] = ""
    since_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


class NetworkStatusView(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What is known of an object. ``observed_generation``: what has been carried out. ``host``: where a port is."""

    observed_generation: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    conditions: Annotated[list[NetworkConditionView], Meta(max_length=len(ConditionKind))] = []
    host: Annotated[str, Meta(max_length=128)] = ""


class NetworkObjectView(Reply, kw_only=True, frozen=True):
    """An object with all that was allocated. ``generation`` counts its changes."""

    kind: NetworkKind
    name: str
    tenant: str
    generation: int
    spec: dict[str, Any]
    status: NetworkStatusView


class NetworkObjectList(Reply, kw_only=True, frozen=True):
    """``next``: goes into ``after`` of the following request; empty: that was all."""

    items: list[NetworkObjectView]
    next: str


class NetworkKey(Reply, kw_only=True, frozen=True):
    """One object by kind and name."""

    kind: NetworkKind
    name: str


class NetworkChangeView(Reply, kw_only=True, frozen=True):
    """What became of an object (``created``, ``changed``, ``removed``, ``unchanged``), with its fields before and after; null
    where there was or is none."""

    change: str
    kind: NetworkKind
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class NetworkChanges(Reply, kw_only=True, frozen=True):
    """All changes in the order in which they are made."""

    changes: list[NetworkChangeView]
    revision: int


class NetworkSince(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """From which revision on, in the query string."""

    after: Annotated[int, Meta(ge=-1, lt=1 << 62, description="a revision that is known already; -1: none")] = -1
    wait: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="seconds to wait for a later one")] = 0.0
    changes: Annotated[bool, Meta(description="only what changed since, where that is still known")] = False


class SnapshotObject(Reply, kw_only=True, frozen=True):
    """One object of a snapshot."""

    kind: NetworkKind
    name: str
    generation: int
    spec: dict[str, Any]


class NetworkSnapshot(Reply, kw_only=True, frozen=True):
    """Objects of all tenants. ``whole``: all there are; else those that changed since, and in ``removed`` those that are gone:
    none of either when nothing has changed."""

    revision: int
    whole: bool
    objects: list[SnapshotObject]
    removed: list[NetworkKey]


class NetworkReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What is known of one object now. ``partial``: by somebody who knows of its conditions only these; the rest stays."""

    kind: NetworkKind
    name: Path
    status: NetworkStatusView
    partial: bool = False


class NetworkReports(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What the program that carries networks out has seen."""

    items: Annotated[list[NetworkReport], Meta(max_length=REPORTED_MAX)]


class NetworkReported(Reply, kw_only=True, frozen=True):
    """How many of them are there."""

    known: int


class CertificateOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A certificate for load balancers of one VPC."""

    certificate: Annotated[str, Meta(min_length=1, max_length=PEM_CHARACTERS_MAX, description="chain, PEM")]
    key: Annotated[str, Meta(min_length=1, max_length=PEM_CHARACTERS_MAX, description="private key, PEM")]


class CertificateView(Reply, kw_only=True, frozen=True):
    """A certificate without its key. Times are seconds since 1970."""

    name: str
    subject: str
    names: list[str]
    expires_at: float
    sha256: str
    changed_at: float


class CertificateList(Reply, kw_only=True, frozen=True):
    items: list[CertificateView]


class CertificateSecret(Reply, kw_only=True, frozen=True):
    """A certificate with its key, for the program that ends TLS with it."""

    name: str
    certificate: str
    key: str
