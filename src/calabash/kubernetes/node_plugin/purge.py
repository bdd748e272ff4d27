"""``calabash uninstall node``: remove the files that the agent leaves on a node after the product is uninstalled.

The agent leaves its files on purpose, so that the next agent finds the allocations again. After an uninstallation they
are useless. ``purge`` removes the mounts of slots, the CDI specs, the sockets of the device plug-ins and the agent's
directory. Running containers still use the mounts with which they were started, so a node whose containers use slices
is purged only with ``force``.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from calabash.adapters.cdi import list_specs, remove_spec
from calabash.adapters.host.files import lock_exclusive
from calabash.adapters.host.mounts import Mounted, mounts, unmount
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.kubernetes.node_plugin.claims.resources import CLAIM_PREFIX
from calabash.kubernetes.node_plugin.containers.device_ids import SPEC_PREFIX
from calabash.kubernetes.node_plugin.settings import relay_directory
from calabash.model.errors import CalabashError, Reason

_DRIVER_DIRECTORY = Path("plugins") / DRIVER
# Sockets of the device plug-ins and of the DRA driver, by their directory below that of the kubelet.
_SOCKETS = {
    Path("device-plugins"): "calabash-*.sock",
    Path("plugins_registry"): "calabash[-.]*-reg.sock",
    _DRIVER_DIRECTORY: "dra-*.sock",
}
_MARKS = ("agent.lock", "agent.db", "alloc")  # every directory of an agent contains one of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """Numbers of mounts, CDI specs and sockets that were removed.

    ``home`` is True if the agent's directory itself was removed, not only its contents.
    """

    mounts: int
    specs: int
    sockets: int
    home: bool


def purge(home: Path, *, specs: Path, kubelet: Path, force: bool = False, proc: Path = Path("/proc")) -> Purged:
    """Remove the files of the agent whose directory is ``home``.

    Args:
        home: the agent's directory.
        specs: directory of CDI specs.
        kubelet: the kubelet's root directory.
        force: purge even if containers use slices.
        proc: the proc file system.

    Raises:
        CalabashError: BAD_REQUEST if ``home`` is not the directory of an agent, CONFLICT while an agent or a relay runs
            or containers use slices, NOT_PERMITTED if a file cannot be removed.
    """
    locks: list[int] = []
    try:
        if home.exists():
            _require_home(home)
            locks = _locks(home)
            if not force:
                _require_unused(home, proc)
        return Purged(
            mounts=_unmount_all(home),
            specs=_remove_specs(specs),
            sockets=_remove_sockets(kubelet),
            home=_remove_home(home),
        )
    except OSError as error:
        raise CalabashError(
            f"cannot remove {error.filename or home}: {error.strerror}",
            reason=Reason.NOT_PERMITTED,
            hint="run it as root of the node",
        ) from error
    finally:
        for lock in locks:
            os.close(lock)


def _require_home(home: Path) -> None:
    entries = set(os.listdir(home))
    if entries and not any(mark in entries for mark in (*_MARKS, relay_directory(home).name)):
        raise CalabashError(
            f"{home} is not the directory of an agent: it contains none of {', '.join(_MARKS)}",
            reason=Reason.BAD_REQUEST,
            hint="use the directory in the chart's value agent.home",
        )


def _locks(home: Path) -> list[int]:
    """Take the locks of the agent and of the relay; return their file descriptors.

    Raises:
        CalabashError: CONFLICT if the agent or the relay runs.
    """
    held: list[int] = []
    for lock, owner in (
        (home / "agent.lock", "the agent"),
        (relay_directory(home) / "relay.lock", "the plug-in relay"),
    ):
        if not lock.parent.is_dir():
            continue
        descriptor = lock_exclusive(lock)
        if descriptor is None:
            for one in held:
                os.close(one)
            raise CalabashError(
                f"{owner} of this node is running and uses {home}",
                reason=Reason.CONFLICT,
                hint="uninstall the chart first, or exclude the node from the DaemonSet calabash-agent",
            )
        held.append(descriptor)
    return held


def _below(home: Path) -> list[Mounted]:
    """Return the mounts below ``home`` in the order in which they must be unmounted: the last mounted first."""
    return [entry for entry in reversed(mounts()) if home in entry.directory.parents]


def _require_unused(home: Path, proc: Path) -> None:
    """Check that no process of a container has a slot mounted.

    Raises:
        CalabashError: CONFLICT if a process has.
    """
    devices = {entry.device for entry in _below(home) if entry.kind == "tmpfs"}
    users = [pid for pid in _pids(proc) if devices and _uses(proc / str(pid), devices, home)]
    if users:
        shown = ", ".join(map(str, users[:5])) + (", ..." if len(users) > 5 else "")
        raise CalabashError(
            f"{len(users)} processes of containers still use slices of this node (pids {shown})",
            reason=Reason.CONFLICT,
            hint="delete their pods first, or use --force",
        )


def _pids(proc: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())


def _uses(process: Path, devices: set[str], home: Path) -> bool:
    try:
        seen = mounts((process / "mountinfo").read_bytes())
    except OSError:  # the process has ended
        return False
    return any(entry.device in devices and home not in entry.directory.parents for entry in seen)


def _unmount_all(home: Path) -> int:
    found = _below(home)
    for entry in found:
        unmount(entry.directory)
    return len(found)


def _remove_specs(specs: Path) -> int:
    if not specs.is_dir():
        return 0
    ours = [spec.name for prefix in (SPEC_PREFIX, CLAIM_PREFIX) for spec in list_specs(specs, prefix)]
    return sum(remove_spec(specs, name) for name in ours)


def _remove_sockets(kubelet: Path) -> int:
    found = [path for part, names in _SOCKETS.items() for path in (kubelet / part).glob(names) if path.is_socket()]
    for path in found:
        with suppress(FileNotFoundError):
            path.unlink()
    with suppress(OSError):
        (kubelet / _DRIVER_DIRECTORY).rmdir()
    return len(found)


def _remove_home(home: Path) -> bool:
    """Delete the directory, or only its contents if it is a mount point; return True if the directory was deleted."""
    if not home.exists():
        return False
    if not home.is_mount():
        shutil.rmtree(home)
        return True
    for entry in list(home.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return False
