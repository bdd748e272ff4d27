"""What the kubelet asks of a device plug-in, and what it says of its containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDevice:
    """A token. ``id`` has at most 63 characters; ``numa_node`` -1 means nowhere in particular."""

    id: str
    healthy: bool = True
    numa_node: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """The answer to Allocate: CDI names (``vendor/class=name``), and variables where CDI is not to be used."""

    cdi_names: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


class PluginHandler(Protocol):
    """Who answers the kubelet. Called from threads of the server, several at a time; never while a lock of it is held."""

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        """A container is admitted with these tokens. Must answer at once: the kubelet waits without a time-out and holds
        the whole node meanwhile. Called again with the same tokens must be harmless."""
        ...

    def pre_start(self, device_ids: tuple[str, ...]) -> None:
        """The container with these tokens is about to be made; comes before every start of it. The kubelet waits 30 s and
        asks again for ever. A CalabashError is shown verbatim, hint included, in the pod's event."""
        ...

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        """Which ``size`` tokens of ``available`` are best, ``must`` among them; the kubelet need not heed it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOwner:
    """Tokens of one resource that a container holds, as pod-resources says. It does not know init containers."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """The same from the kubelet's checkpoint, which has init containers, the pod's UID and the answer of Allocate."""

    pod_uid: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    cdi_names: tuple[str, ...]
