"""Merge, strategic merge, JSON and apply patches on JSON values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from calabash.adapters.kube.errors import KubeError
from calabash.model.errors import Reason

# Lists that a strategic patch merges by a key; all others are replaced.
_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "schedulingGates": "name",
    "ownerReferences": "uid",
    "taints": "key",
    "env": "name",
}


def merge(old: Any, patch: Any) -> Any:
    """Return an object after a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    out = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def strategic(old: Any, patch: Any, field: str = "") -> Any:
    """Return an object after a strategic merge patch.

    Lists of ``_KEYS`` are merged by their key; an entry with ``$patch: delete`` is removed.
    """
    if isinstance(patch, list) and field in _KEYS:
        return _by_key(list(old or []), patch, _KEYS[field])
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    out = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = strategic(out.get(key), value, key)
    return out


def _by_key(old: list[Any], patch: list[Any], key: str) -> list[Any]:
    out = list(old)
    for entry in patch:
        at = next((i for i, have in enumerate(out) if have.get(key) == entry.get(key)), None)
        if entry.get("$patch") == "delete":
            if at is not None:
                del out[at]
        elif at is None:
            out.append(copy.deepcopy(entry))
        else:
            out[at] = strategic(out[at], entry)
    return out


def json_patch(old: Any, operations: list[Mapping[str, Any]]) -> Any:
    """Return an object after a JSON patch (RFC 6902) of ``test``, ``add``, ``replace`` and ``remove``.

    Raises:
        KubeError: BAD_REQUEST, if an operation does not apply.
    """
    out = copy.deepcopy(old)
    for operation in operations:
        path = [part.replace("~1", "/").replace("~0", "~") for part in str(operation["path"]).split("/")[1:]]
        try:
            _operate(out, path, str(operation["op"]), operation.get("value"))
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise KubeError(
                f"the JSON patch does not apply at {operation['path']}", reason=Reason.BAD_REQUEST, status=422
            ) from error
    return out


def _operate(target: Any, path: list[str], op: str, value: Any) -> None:
    for part in path[:-1]:
        target = target[int(part)] if isinstance(target, list) else target[part]
    last = path[-1]
    if isinstance(target, list):
        at = len(target) if last == "-" else int(last)
        if op == "add":
            target.insert(at, value)
            return
        have = target[at]
    else:
        at = last  # type: ignore[assignment]
        if op == "add":
            target[last] = value
            return
        have = target[last]
    if op == "test":
        if have != value:
            raise ValueError(last)
    elif op == "replace":
        target[at] = value
    elif op == "remove":
        del target[at]
    else:
        raise ValueError(op)


def apply(old: Any, before: Any, wanted: Any) -> Any:
    """Return an object after a server-side apply by one manager.

    Fields of ``before`` that ``wanted`` no longer names are removed, fields of ``wanted`` are set. Lists are replaced, unless
    their key is in ``_KEYS``.

    Args:
        old: the object.
        before: what the manager applied last.
        wanted: what it applies now.
    """
    out = dict(old) if isinstance(old, Mapping) else {}
    for key in before if isinstance(before, Mapping) else ():
        if key not in wanted:
            out.pop(key, None)
    for key, value in wanted.items():
        if isinstance(value, Mapping):
            earlier = before.get(key, {}) if isinstance(before, Mapping) else {}
            out[key] = apply(out.get(key), earlier, value)
        elif isinstance(value, list) and key in _KEYS:
            mine = {entry.get(_KEYS[key]) for entry in (before or {}).get(key, ())}
            kept = [entry for entry in out.get(key, ()) if entry.get(_KEYS[key]) not in mine]
            out[key] = _by_key(kept, value, _KEYS[key])
        else:
            out[key] = copy.deepcopy(value)
    return out
