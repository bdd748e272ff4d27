"""What the kubelet asks of a device plug-in, and what it says of its containers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
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

    def pre_start(self, device_ids: tuple[str, ...], answered: tuple[str, ...]) -> None:
        """The container with these tokens is about to be made; comes before every start of it. The kubelet waits 30 s and
        asks again for ever. A CalabashError is shown verbatim, hint included, in the pod's event.

        Args:
            answered: the CDI names with which Allocate was answered by another process, a relay; () where none was.
        """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """A ResourceClaim as the kubelet names it. ``name`` is used again by other claims, ``uid`` is not."""

    namespace: str
    uid: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device of a claim, ready for containers.

    Args:
        requests: the requests of the claim that it answers.
        cdi_names: what a container that uses it is given (``vendor/class=name``).
        share_id: which share of it; "" where it is not shared.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_names: tuple[str, ...]
    share_id: str = ""


class ClaimHandler(Protocol):
    """Who answers the kubelet for claims. Called from threads of the server, one call for a claim at a time."""

    def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        """A pod of this node is about to use it. Asked again, it answers the same. A CalabashError is shown verbatim, hint
        included, in the pod's event; the kubelet asks again."""
        ...

    def unprepare(self, claim: ClaimRef) -> None:
        """No pod of this node uses it any more; one that is not known is fine. A CalabashError has the kubelet ask again."""
        ...


class DeviceState(Enum):
    """The numbers are those of the wire."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """How a device fares that claims can have; ``message`` is for people."""

    pool: str
    device: str
    state: DeviceState
    message: str = ""
