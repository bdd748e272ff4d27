"""A JSON patch applied as an API server applies it, to judge patches by what they make."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any


def applied(tree: Any, patch: Sequence[dict[str, Any]]) -> Any:
    """The object after the patch. Raises KeyError or IndexError where RFC 6902 says that it cannot be applied."""
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
