"""Spec files of containers that are gone are removed: the kubelet's checkpoint says which names are still in force."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from calabash.kubernetes.node.tokens import SPEC_PREFIX, device_name
from calabash.model.errors import CalabashError
from calabash.seams.cdi import list_specs, remove_spec
from calabash.seams.kubelet.protocol import CheckpointEntry

KEPT_S = 60.0  # a file this young is not judged: the checkpoint may be written a moment after it


def remove_stale(directory: Path, checkpoint: Callable[[], Iterable[CheckpointEntry]]) -> list[str]:
    """Remove our files none of whose names is in force; their names. Nothing while the checkpoint cannot be read."""
    try:
        specs = list_specs(directory, SPEC_PREFIX)
        if not specs:
            return []
        used = {device_name(name) for entry in checkpoint() for name in entry.cdi_names}
    except CalabashError:
        return []
    removed = []
    for spec in specs:
        if used.isdisjoint(spec.devices) and _age_s(directory / f"{spec.name}.json") > KEPT_S:
            with suppress(CalabashError):
                remove_spec(directory, spec.name)
                removed.append(spec.name)
    return removed


def _age_s(path: Path) -> float:
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0
