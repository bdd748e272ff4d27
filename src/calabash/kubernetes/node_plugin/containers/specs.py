"""Spec files of containers: written when a container is about to be made, removed when it is gone.

The kubelet's checkpoint says which names are still in force, except those of pods that have ended: the kubelet forgets them
only when it admits the next pod with devices. It is written before we are asked, so a name that is not in it is of the past;
it has to be missing at two looks, for a file may be replaced while it is read.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from calabash.adapters.cdi import ContainerEdits, list_specs, remove_spec, sweep_leftovers, write_spec
from calabash.adapters.kubelet.protocol import CheckpointEntry
from calabash.kubernetes.node_plugin.containers.device_ids import SPEC_PREFIX, device_name, spec_name
from calabash.kubernetes.objects.names import CDI_KIND
from calabash.model.errors import CalabashError

LOOK_S = 5.0


class SlotSpecs:
    """Our files in a directory of dynamic CDI specs, of which nobody else writes any.

    Args:
        checkpoint: the kubelet's entries of pods that may still start; raises CalabashError when they cannot be had.
        now_s: a clock that only goes forward.
    """

    def __init__(
        self,
        directory: Path,
        checkpoint: Callable[[], Iterable[CheckpointEntry]],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._now_s = now_s
        self._next_s = -math.inf
        self._lock = threading.Lock()
        self._suspects: set[str] = set()  # files none of whose names was in force at the last look
        with suppress(OSError):
            sweep_leftovers(directory, SPEC_PREFIX)  # of an agent that was killed while it wrote

    def write(self, tokens: Sequence[str], devices: Mapping[str, ContainerEdits]) -> None:
        """What the containers with exactly these tokens need, by CDI device name. Raises CalabashError."""
        name = spec_name(tokens)
        with self._lock:
            write_spec(self._directory, name, CDI_KIND, devices)
            self._suspects.discard(name)

    def sweep(self) -> list[str]:
        """Remove what is out of force, when it is time to look; the names of the files."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return []
        self._next_s = now_s + LOOK_S
        try:
            unused = self._unused()
        except CalabashError:
            unused = set()
        removed = []
        with self._lock:
            for name in sorted(unused & self._suspects):
                with suppress(CalabashError):
                    remove_spec(self._directory, name)
                    removed.append(name)
            self._suspects = unused.difference(removed)
        return removed

    def _unused(self) -> set[str]:
        specs = list_specs(self._directory, SPEC_PREFIX)
        if not specs:
            return set()
        used = {device_name(name) for entry in self._checkpoint() for name in entry.cdi_names}
        return {spec.name for spec in specs if used.isdisjoint(spec.devices)}
