"""Interfaces between the kubelet and the agent: device plug-in, claim driver, and records of containers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDevice:
    """Device ID that a plug-in offers; ``id`` has at most 63 characters, ``numa_node`` -1 means none."""

    id: str
    healthy: bool = True
    numa_node: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """Answer to Allocate: CDI names (``vendor/class=name``), and environment variables where CDI is not used."""

    cdi_names: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


class PluginHandler(Protocol):
    """Handler of the kubelet's calls to a device plug-in.

    The server calls the methods from several threads at a time, and holds no lock of its own meanwhile.
    """

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        """Answer Allocate for a container that is admitted with these device IDs.

        Must return at once: the kubelet waits without a time-out and blocks the whole node meanwhile. May be called
        again with the same device IDs.
        """
        ...

    def pre_start(self, device_ids: tuple[str, ...], answered: tuple[str, ...]) -> None:
        """Prepare a start of the container that has these device IDs. Called before each start, also after a crash.

        The kubelet waits 30 s and retries forever. A CalabashError is shown verbatim, with its hint, in the pod's
        event.

        Args:
            answered: CDI names with which another process, a relay, answered Allocate; () if none did.
        """
        ...

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        """Return the best ``size`` device IDs of ``available``, including ``must``; the kubelet may choose others."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOwner:
    """Device IDs of one resource that a container has, from pod-resources, which does not report init containers."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """Device IDs of one resource that a container has, from the kubelet's checkpoint.

    ``cdi_names`` are the CDI names with which the plug-in answered Allocate.
    """

    pod_uid: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    cdi_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """ResourceClaim as the kubelet names it. A later claim may have the same ``name``, but not the same ``uid``."""

    namespace: str
    uid: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """Device of a claim, ready for containers.

    Args:
        requests: requests of the claim that it satisfies.
        cdi_names: CDI names for a container that uses it (``vendor/class=name``).
        share_id: share of the device; "" if it is not shared.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_names: tuple[str, ...]
    share_id: str = ""


class ClaimHandler(Protocol):
    """Handler of the kubelet's calls about claims. It is called from threads of the server, one at a time for each claim."""

    def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Prepare the devices of a claim that a pod of this node is about to use.

        A repeated call returns the same devices. A CalabashError is shown verbatim, with its hint, in the pod's event,
        and the kubelet retries.
        """
        ...

    def unprepare(self, claim: ClaimRef) -> None:
        """Release a claim that no pod of this node uses any more; an unknown claim is accepted.

        After a CalabashError the kubelet retries.
        """
        ...


class DeviceState(Enum):
    """Health of a device, with the numbers of the kubelet's API."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """Health of a device that claims can have; ``message`` is for people."""

    pool: str
    device: str
    state: DeviceState
    message: str = ""
