"""Registry of the executors: finds every module of this package that defines ``open_mode``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import cast

from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import ModeName
from calabash.node import modes
from calabash.node.modes.protocol import ModeExecutor, NodeTools
from calabash.sharing.registry import RequestModes, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantMode:
    """Sharing mode of one allocation on this node, resolved once per grant and passed along.

    Args:
        rules: request of the allocation, with the mode of its placement.
        executor: executor of this mode on this node.
    """

    rules: RequestModes
    executor: ModeExecutor


def open_modes(tools: NodeTools) -> Mapping[ModeName, ModeExecutor]:
    """Create the executors of all modes for one node."""
    found: dict[ModeName, ModeExecutor] = {}
    for info in sorted(pkgutil.walk_packages(modes.__path__, modes.__name__ + "."), key=lambda i: i.name):
        if info.ispkg or info.name == __name__:
            continue
        opener = getattr(importlib.import_module(info.name), "open_mode", None)
        if opener is not None:
            executor = cast("Callable[[NodeTools], ModeExecutor]", opener)(tools)
            found[executor.name] = executor
    return MappingProxyType(found)


def grant_mode(record: AllocationRecord, executors: Mapping[ModeName, ModeExecutor]) -> GrantMode:
    """Return the mode of an allocation's placement.

    Raises UNKNOWN_MODE, or MODE_CONFLICT if the mode isolates tenants less than the request requires.
    """
    name = record.placement.mode
    return GrantMode(
        rules=resolve(replace(record.request, mode=name)),
        executor=executor_of(name, executors),
    )


def executor_of(name: str, executors: Mapping[ModeName, ModeExecutor]) -> ModeExecutor:
    """Return the executor of a mode. Raises UNKNOWN_MODE."""
    executor = executors.get(ModeName(name))
    if executor is None:
        raise CalabashError(
            f"this node cannot serve sharing mode {name!r}",
            reason=Reason.UNKNOWN_MODE,
            hint=f"modes of this node: {', '.join(sorted(executors))}",
        )
    return executor
