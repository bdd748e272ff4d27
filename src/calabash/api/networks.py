"""Message types of tenant networks.

Objects as in YAML (``kind``, ``name``, ``spec``), their status, and snapshots of all objects for the network controller.
"""

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
PLACE_CHARACTERS_MAX = 200

Path = Annotated[
    str, Meta(min_length=1, max_length=128, description="path of the object, like `red`, `red/a` or `red/a/web1`")
]
Word = Annotated[str, Meta(max_length=64)]
Spec = Annotated[dict[str, Any], Meta(description="the fields of the kind; see the reference of network objects")]


class NetworkOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Network object to create or replace. Fields that are left out are allocated or get their defaults."""

    kind: NetworkKind
    name: Path
    spec: Spec = {}
    new: Annotated[bool, Meta(description="return 409 if the object exists and is different")] = False
    generation: Annotated[
        int, Meta(ge=0, lt=1 << 62, description="return 409 if the object has another generation; 0: not checked")
    ] = 0


class NetworkDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Network object of a file."""

    kind: Annotated[str, Meta(max_length=64, description="`vpc`, `subnet`, `port`, ...")]
    name: Annotated[str, Meta(max_length=200)]
    spec: Spec = {}
    place: Annotated[
        str,
        Meta(
            max_length=PLACE_CHARACTERS_MAX,
            pattern=r"^[^\x00-\x1f\x7f]*\Z",
            description="place of the object for error messages, like `net.yaml: document 2`; empty: its number here",
        ),
    ] = ""


class NetworkFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Network objects to apply in one transaction: all of them, or none if one is not possible."""

    documents: Annotated[list[NetworkDocument], Meta(max_length=DOCUMENTS_MAX)]
    prune: Annotated[
        bool,
        Meta(
            description="delete objects that an earlier file created and that are not in this file, in the VPCs of this file"
        ),
    ] = False
    dry_run: Annotated[bool, Meta(description="change nothing, and return the changes")] = False


class NetworkPage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select network objects."""

    kind: Annotated[NetworkKind, Meta(description="left out: all kinds")] | None = None
    vpc: Annotated[str, Meta(max_length=64, description="VPC of the objects; empty: all VPCs")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="most items")] = 1000
    after: Annotated[str, Meta(max_length=256, description="`next` of the previous page")] = ""


class NetworkName(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters that select one network object."""

    name: Path


class NetworkRemoval(NetworkName, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters of the deletion of a network object."""

    cascade: Annotated[bool, Meta(description="also delete all objects in the VPC or subnet")] = False


class NetworkConditionView(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Condition of a network object.

    ``holds``: the condition is true or false; null: unknown. ``reason``: stable code. ``since_s``: time of the last change.
    """

    kind: ConditionKind
    holds: bool | None
    reason: Word = ""
    message: Annotated[str, Meta(max_length=500)] = ""
    since_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


class NetworkStatusView(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Status of a network object. ``observed_generation``: the generation that is configured. ``host``: the host of a port."""

    observed_generation: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    conditions: Annotated[list[NetworkConditionView], Meta(max_length=len(ConditionKind))] = []
    host: Annotated[str, Meta(max_length=128)] = ""


class NetworkObjectView(Reply, kw_only=True, frozen=True):
    """Network object with its allocated fields and its status. ``generation`` counts its changes."""

    kind: NetworkKind
    name: str
    tenant: str
    generation: int
    spec: dict[str, Any]
    status: NetworkStatusView


class NetworkObjectList(Reply, kw_only=True, frozen=True):
    """Page of network objects. ``next`` is the value of ``after`` for the next page; empty on the last page."""

    items: list[NetworkObjectView]
    next: str


class NetworkKey(Reply, kw_only=True, frozen=True):
    """Kind and name of a network object."""

    kind: NetworkKind
    name: str


class NetworkChangeView(Reply, kw_only=True, frozen=True):
    """Change of a network object: ``created``, ``changed``, ``removed`` or ``unchanged``.

    ``before`` and ``after`` are its fields; null if it did not or does not exist.
    """

    change: str
    kind: NetworkKind
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class NetworkChanges(Reply, kw_only=True, frozen=True):
    """Changes of network objects, in the order in which they are made."""

    changes: list[NetworkChangeView]
    revision: int


class NetworkSince(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Query parameters of a snapshot."""

    after: Annotated[int, Meta(ge=-1, lt=1 << 62, description="last known revision; -1: none")] = -1
    wait: Annotated[float, Meta(ge=0, le=WAIT_S_MAX, description="seconds to wait for a later revision")] = 0.0
    changes: Annotated[
        bool, Meta(description="return only changes since that revision, if they are still available")
    ] = False


class SnapshotObject(Reply, kw_only=True, frozen=True):
    """Network object of a snapshot."""

    kind: NetworkKind
    name: str
    generation: int
    spec: dict[str, Any]


class NetworkSnapshot(Reply, kw_only=True, frozen=True):
    """Network objects of all tenants.

    ``whole``: ``objects`` has all objects. Otherwise it has the changed objects, and ``removed`` the deleted ones; both are
    empty if nothing has changed.
    """

    revision: int
    whole: bool
    objects: list[SnapshotObject]
    removed: list[NetworkKey]


class NetworkReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Reported status of a network object. ``partial``: conditions that are not in the report keep their values."""

    kind: NetworkKind
    name: Path
    status: NetworkStatusView
    partial: bool = False


class NetworkReports(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Status reports of the network controller."""

    items: Annotated[list[NetworkReport], Meta(max_length=REPORTED_MAX)]


class NetworkReported(Reply, kw_only=True, frozen=True):
    """Number of reported objects that exist."""

    known: int


class CertificateOrder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Certificate to store for the load balancers of one VPC."""

    certificate: Annotated[
        str, Meta(min_length=1, max_length=PEM_CHARACTERS_MAX, description="certificate chain in PEM")
    ]
    key: Annotated[str, Meta(min_length=1, max_length=PEM_CHARACTERS_MAX, description="private key in PEM")]


class CertificateView(Reply, kw_only=True, frozen=True):
    """Certificate without its key. Times are seconds since 1970."""

    name: str
    subject: str
    names: list[str]
    expires_at: float
    sha256: str
    changed_at: float


class CertificateList(Reply, kw_only=True, frozen=True):
    items: list[CertificateView]


class CertificateSecret(Reply, kw_only=True, frozen=True):
    """Certificate with its key, for the program that terminates TLS."""

    name: str
    certificate: str
    key: str
