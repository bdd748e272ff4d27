"""Application of a JSON patch as by an API server, to test patches by their result."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any


def applied(tree: Any, patch: Sequence[dict[str, Any]]) -> Any:
    """Return the patched object. Raises KeyError or IndexError if RFC 6902 forbids the patch."""
    result = copy.deepcopy(tree)
    for operation in patch:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        parent = result
        for step in steps[:-1]:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        value = copy.deepcopy(operation.get("value"))
        if isinstance(parent, list):
            assert operation["op"] == "add"
            parent.insert(len(parent) if steps[-1] == "-" else int(steps[-1]), value)
        elif operation["op"] == "remove":
            del parent[steps[-1]]
        else:
            parent[steps[-1]] = value
    return result
