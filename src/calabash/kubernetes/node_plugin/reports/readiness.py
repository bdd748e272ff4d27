"""Readiness of the agent, which the kubelet probes: ``/readyz`` on the port of the metrics.

An agent is ready when its journal is open, and the kubelet has registered the interfaces by which the node offers its
devices. A rolling update of the DaemonSet therefore stops at the first nodes whose agent cannot start, such as one that
finds a journal of a newer version.

Readiness is about the program, not about the devices of the node. An agent that refuses new allocations, because the
disk is full or another device plug-in offers the cards, is ready, and so is one on a node without a GPU driver, which
has nothing to register: an update must not stop at such nodes. The condition ``Ready`` of the ``GpuNode`` is about the
devices.
"""

from __future__ import annotations

from collections.abc import Sequence

from calabash.model.errors import CalabashError

STARTING = "starting: the journal is not open yet"


class Readiness:
    """Readiness of one agent. The agent's main loop updates it; ``fault`` may be called from any thread."""

    def __init__(self) -> None:
        self._fault = STARTING

    def fault(self) -> str:
        """Return why the agent is not ready; "" if it is. The text names no object of the cluster and no file."""
        return self._fault

    def failed(self, error: CalabashError) -> None:
        """Note that the agent cannot serve because of the error."""
        self._fault = f"the agent cannot serve: {error.reason}"

    def has_nothing_to_register(self) -> None:
        """Note that the journal is open and the node has no GPU driver."""
        self._fault = ""

    def serves(self, unregistered: Sequence[str]) -> None:
        """Note that the agent serves.

        Args:
            unregistered: names of the served interfaces that the kubelet has not registered.
        """
        self._fault = f"not registered by the kubelet: {', '.join(unregistered)}" if unregistered else ""
