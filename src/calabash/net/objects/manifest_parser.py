"""Files of objects: YAML read strictly, as plain data.

Only what JSON has besides comments: no anchors, no tags, no key twice, and a word is a word (``on`` and ``22:22`` are text), so
that a MAC never becomes a number of base sixty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from calabash.model.errors import CalabashError

BYTES_MAX = 1 << 20
DOCUMENTS_MAX = 2000
DEPTH_MAX = 12
_LIST = "NetworkObjectList"  # what `list -o yaml` prints
_SHOWN = frozenset({"apiVersion", "tenant", "generation", "status"})  # what `show -o yaml` says besides


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkManifest:
    """One object of a file. ``place``: which document, for messages."""

    place: str
    kind: str
    name: str
    spec: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """As the API is asked."""
        return {"kind": self.kind, "name": self.name, "spec": dict(self.spec)}


def read_manifests(text: str, file: str = "") -> list[NetworkManifest]:
    """All objects of a file, in its order. Raises CalabashError that says which document, and which field."""
    if len(text.encode(errors="replace")) > BYTES_MAX:
        raise CalabashError(f"{file or 'the file'} is larger than {BYTES_MAX} bytes", hint="split it")
    found: list[NetworkManifest] = []
    for number, document in enumerate(_documents(text, file), start=1):
        place = f"{file}: document {number}" if file else f"document {number}"
        if document is None:
            continue
        if isinstance(document, Mapping) and document.get("kind") == _LIST:
            items = document.get("items")
            if not isinstance(items, list):
                raise CalabashError(
                    f"{place}: items is no list", hint="items: [{kind: ..., name: ..., spec: ...}, ...]"
                )
            found += (_manifest(item, f"{place}, item {i}") for i, item in enumerate(items, start=1))
        else:
            found.append(_manifest(document, place))
        if len(found) > DOCUMENTS_MAX:
            raise CalabashError(f"{place}: more than {DOCUMENTS_MAX} objects", hint="split the file")
    return found


def _manifest(document: Any, place: str) -> NetworkManifest:
    if not isinstance(document, Mapping):
        raise CalabashError(f"{place} is no map", hint="kind, name and spec, like `calabash vpc show red -o yaml`")
    for field in document:
        if field not in _SHOWN | {"kind", "name", "spec"}:
            raise CalabashError(f"{place}: there is no field {str(field)[:40]!r}", hint="fields: kind, name, spec")
    for field in ("kind", "name"):
        if not isinstance(document.get(field), str):
            said = "is missing" if field not in document else "is no text"
            raise CalabashError(f"{place}: {field} {said}", hint="like kind: subnet, name: red/a")
    spec = document.get("spec", {})
    if not isinstance(spec, Mapping):
        raise CalabashError(f"{place}: spec is no map", hint="spec: {cidrs: [10.0.1.0/24]}")
    return NetworkManifest(place=place, kind=document["kind"], name=document["name"], spec=spec)


class _Loader(yaml.SafeLoader):
    """What JSON has, in YAML's spelling."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(None, None, "anchors are not read", event.start_mark)
        if getattr(event, "tag", None):
            raise yaml.composer.ComposerError(None, None, "tags are not read", event.start_mark)
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise yaml.composer.ComposerError(None, None, f"deeper than {DEPTH_MAX}", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in found:
                said = "a key is no text" if not isinstance(key, str) else f"{key[:40]!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, said, key_node.start_mark)
            found[key] = self.construct_object(value_node, deep=True)
        return found


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Iterator[dict[Any, Any]]:
    yield loader.construct_mapping(node)


_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {**yaml.SafeLoader.yaml_constructors}
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"-?(0|[1-9][0-9]{0,30})", "-0123456789"),
    ("float", r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def _documents(text: str, file: str) -> Iterator[Any]:
    try:
        yield from yaml.load_all(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        said = getattr(error, "problem", None) or getattr(error, "reason", None) or "not understood"
        said = "".join(c if c.isprintable() else "?" for c in str(said))[:200]
        raise CalabashError(
            f"{file or 'the file'}{line}: {said}", hint="check it against docs/how-to/tenant-networks.md"
        ) from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise CalabashError(
            f"{file or 'the file'} is not understood: {type(error).__name__}", hint="is it YAML?"
        ) from None
