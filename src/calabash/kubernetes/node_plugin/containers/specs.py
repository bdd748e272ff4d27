"""CDI spec files of containers: written when a container is about to be created, removed when the kubelet forgot it.

The kubelet's checkpoint file lists the CDI names in use. (It also lists those of ended pods until the kubelet admits
the next pod with devices.) The kubelet writes the checkpoint before it calls the agent, so a CDI name that is not in
the checkpoint is no longer used. A spec is removed only if its names were missing in two successive reads, because the
kubelet may replace the checkpoint while it is read.
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

POLL_S = 5.0


class SlotSpecs:
    """The agent's own files in a directory of dynamic CDI specs.

    Args:
        directory: the directory; other programs have their specs in it too.
        checkpoint: returns the entries of the kubelet's checkpoint for pods that may still start containers; raises
            CalabashError if they cannot be read.
        now_s: a monotonic clock, in seconds.
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
        self._unused_before: set[str] = set()  # files without a name in use at the last read
        with suppress(OSError):
            sweep_leftovers(directory, SPEC_PREFIX)  # of an agent that was killed while writing

    def write(self, tokens: Sequence[str], devices: Mapping[str, ContainerEdits]) -> None:
        """Write the spec of the containers that have exactly these device IDs.

        Args:
            tokens: the device IDs.
            devices: CDI edits by CDI device name.

        Raises:
            CalabashError: the file cannot be written.
        """
        name = spec_name(tokens)
        with self._lock:
            write_spec(self._directory, name, CDI_KIND, devices)
            self._unused_before.discard(name)

    def sweep(self) -> list[str]:
        """Remove unused specs, at most every ``POLL_S`` seconds; return the names of the removed files."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return []
        self._next_s = now_s + POLL_S
        try:
            unused = self._unused()
        except CalabashError:
            unused = set()
        removed = []
        with self._lock:
            for name in sorted(unused & self._unused_before):
                with suppress(CalabashError):
                    remove_spec(self._directory, name)
                    removed.append(name)
            self._unused_before = unused.difference(removed)
        return removed

    def _unused(self) -> set[str]:
        specs = list_specs(self._directory, SPEC_PREFIX)
        if not specs:
            return set()
        used = {device_name(name) for entry in self._checkpoint() for name in entry.cdi_names}
        return {spec.name for spec in specs if used.isdisjoint(spec.devices)}
