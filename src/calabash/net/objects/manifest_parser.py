"""Parser of YAML manifests of network objects.

Accepts the subset of YAML that corresponds to JSON, and comments. Anchors, tags and duplicate keys are errors. Every
plain word is text, except ``true``, ``false``, ``null`` and decimal numbers. So ``on`` is not read as a boolean, and a
MAC is not read as a number of base 60.
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
    if len(text.encode(errors="replace")) > BYTES_MAX:
        raise CalabashError(f"{file or 'the file'} is larger than {BYTES_MAX} bytes", hint="split the file")
    found: list[NetworkManifest] = []
    for number, document in enumerate(_documents(text, file), start=1):
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


class _Loader(yaml.SafeLoader):
    """YAML loader for the subset that corresponds to JSON."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.composer.ComposerError(None, None, "anchors are not supported", event.start_mark)
        if getattr(event, "tag", None):
            raise yaml.composer.ComposerError(None, None, "tags are not supported", event.start_mark)
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {DEPTH_MAX} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in found:
                problem = "a key is not text" if not isinstance(key, str) else f"duplicate key {key[:40]!r}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
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
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "invalid YAML"
        problem = "".join(c if c.isprintable() else "?" for c in str(problem))[:200]
        raise CalabashError(
            f"{file or 'the file'}{line}: {problem}", hint="check it against docs/how-to/tenant-networks.md"
        ) from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise CalabashError(
            f"{file or 'the file'} is not valid YAML: {type(error).__name__}", hint="check the syntax"
        ) from None
