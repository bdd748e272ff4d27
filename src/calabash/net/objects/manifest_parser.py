"""Parser of YAML manifests of network objects.

The subset of YAML that ``calabash.model.strict_yaml`` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calabash.model.errors import CalabashError
from calabash.model.strict_yaml import YamlLimits, read_documents

BYTES_MAX = 1 << 20
DOCUMENTS_MAX = 2000
_LIMITS = YamlLimits(bytes_max=BYTES_MAX, depth_max=12, hint="check it against docs/how-to/tenant-networks.md")
_LIST_KIND = "NetworkObjectList"  # printed by `list -o yaml`
_IGNORED_FIELDS = frozenset({"apiVersion", "tenant", "generation", "status"})  # printed by `show -o yaml`


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkManifest:
    """One object of a file. ``place`` is its position in the file for messages, such as "net.yaml: document 2"."""

    place: str
    kind: str
    name: str
    spec: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """Return the manifest in the form of the API."""
        return {"kind": self.kind, "name": self.name, "spec": dict(self.spec)}


def read_manifests(text: str, file: str = "") -> list[NetworkManifest]:
    """Parse all objects of a file, in their order.

    Args:
        text: the contents, at most BYTES_MAX bytes and DOCUMENTS_MAX objects.
        file: the name of the file, for messages.

    Raises:
        CalabashError: names the document and the field.
    """
    found: list[NetworkManifest] = []
    for number, document in enumerate(read_documents(text, file, _LIMITS), start=1):
        place = f"{file}: document {number}" if file else f"document {number}"
        if document is None:
            continue
        if isinstance(document, Mapping) and document.get("kind") == _LIST_KIND:
            items = document.get("items")
            if not isinstance(items, list):
                raise CalabashError(
                    f"{place}: items is not a list", hint="items: [{kind: ..., name: ..., spec: ...}, ...]"
                )
            found += (_manifest(item, f"{place}, item {i}") for i, item in enumerate(items, start=1))
        else:
            found.append(_manifest(document, place))
        if len(found) > DOCUMENTS_MAX:
            raise CalabashError(f"{place}: more than {DOCUMENTS_MAX} objects", hint="split the file")
    return found


def _manifest(document: Any, place: str) -> NetworkManifest:
    if not isinstance(document, Mapping):
        raise CalabashError(
            f"{place} is not a map", hint="kind, name and spec, like `calabash net vpc show red -o yaml`"
        )
    for field in document:
        if field not in _IGNORED_FIELDS | {"kind", "name", "spec"}:
            raise CalabashError(f"{place}: unknown field {str(field)[:40]!r}", hint="fields: kind, name, spec")
    for field in ("kind", "name"):
        if not isinstance(document.get(field), str):
            problem = "is missing" if field not in document else "is not text"
            raise CalabashError(f"{place}: {field} {problem}", hint="like kind: subnet, name: red/a")
    spec = document.get("spec", {})
    if not isinstance(spec, Mapping):
        raise CalabashError(f"{place}: spec is not a map", hint="spec: {cidrs: [10.0.1.0/24]}")
    return NetworkManifest(place=place, kind=document["kind"], name=document["name"], spec=spec)
