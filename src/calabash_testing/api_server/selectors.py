"""Label and field selectors of list and watch requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from calabash.adapters.kube.errors import KubeError
from calabash.model.errors import Reason

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)")
_FIELDS = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "spec.nodeName",
        "spec.schedulerName",
        "spec.driver",
        "status.phase",
        "spec.unschedulable",
        "involvedObject.uid",
    }
)


def matches(obj: Mapping[str, Any], label_selector: str, field_selector: str) -> bool:
    """Return True if both selectors match the object.

    Raises:
        KubeError: BAD_REQUEST, for a selector that the API server refuses as well.
    """
    labels = obj["metadata"].get("labels", {})
    return all(_label(labels, term) for term in _terms(label_selector)) and all(
        _field(obj, term) for term in field_selector.split(",") if term
    )


def _terms(selector: str) -> list[str]:
    """Split at commas that are not within parentheses."""
    return [term.strip() for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label(labels: Mapping[str, str], term: str) -> bool:
    if found := _SET.fullmatch(term):
        inside = labels.get(found["key"]) in [value.strip() for value in found["values"].split(",")]
        return inside == (found["op"] == "in")
    if term.startswith("!"):
        return term[1:].strip() not in labels
    if "=" not in term:
        return term in labels
    key, negated, value = _comparison(term)
    return (labels.get(key) == value) != negated


def _field(obj: Mapping[str, Any], term: str) -> bool:
    key, negated, value = _comparison(term)
    if key not in _FIELDS:
        raise KubeError(f"field label not supported: {key}", reason=Reason.BAD_REQUEST, status=400)
    section, _, name = key.partition(".")
    have = obj.get(section, {}).get(name, "")
    text = str(have).lower() if isinstance(have, bool) else str(have)
    return (text == value) != negated


def _comparison(term: str) -> tuple[str, bool, str]:
    if "!=" in term:
        key, value = term.split("!=", 1)
        return key.strip(), True, value.strip()
    key, value = re.split("==?", term, maxsplit=1)
    return key.strip(), False, value.strip()
