"""Container edits of CDI devices, and their encoding as a spec of CDI 0.5 to 0.7.

A spec states the lowest CDI version that defines all fields used in it, because a runtime refuses newer versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from calabash.model.errors import CalabashError, Reason

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PERMISSIONS = re.compile(r"r?w?m?")
_KIND_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")
_NAME_MAX = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class MountEdit:
    """Bind mount of an absolute host path at an absolute container path."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "rbind", "rprivate")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """Device node that is made in a container.

    Args:
        host_path: path of the node on the host; "" for the same as ``path``.
        type: ``b`` block, ``c`` or ``u`` character, ``p`` FIFO. "" lets the runtime read the type and the device numbers
            from the host's node when it starts the container.
        permissions: access in the device control group, a subset of ``rwm``.
    """

    path: str
    host_path: str = ""
    type: Literal["", "b", "c", "u", "p"] = ""
    major: int = 0
    minor: int = 0
    permissions: str = "rw"
    uid: int | None = None
    gid: int | None = None
    file_mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Variables, mounts and device nodes that one device name adds to a container.

    If two mounts or two nodes have the same path, the runtime uses the later one.
    """

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[MountEdit, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    additional_gids: tuple[int, ...] = ()


def spec(kind: str, devices: dict[str, ContainerEdits]) -> dict[str, Any]:
    """Return a CDI spec as JSON values.

    Args:
        kind: common first part of the device names, ``vendor/class``.
        devices: edits by the last part of the device name; a container requests ``vendor/class=name``.

    Raises CalabashError(BAD_REQUEST) if a runtime would refuse the spec.
    """
    vendor, _, cls = kind.partition("/")
    if not (_KIND_PART.fullmatch(vendor) and _KIND_PART.fullmatch(cls)) or len(kind) > _NAME_MAX:
        raise _bad(f"{kind!r} is not of the form vendor/class")
    if not devices:
        raise _bad("the spec has no devices")
    for name in devices:
        if not _DEVICE.fullmatch(name) or len(name) > _NAME_MAX:
            raise _bad(f"{name!r} is not a device name")
    entries = [{"name": name, "containerEdits": _edits(name, edits)} for name, edits in devices.items()]
    return {"cdiVersion": _version(kind, devices), "kind": kind, "devices": entries}


def _version(kind: str, devices: dict[str, ContainerEdits]) -> str:
    """Return the lowest CDI version that has all fields used.

    A runtime refuses fields that are newer than the version that the spec states.
    """
    if any(edits.additional_gids for edits in devices.values()):
        return "0.7.0"
    if "." in kind.partition("/")[2]:
        return "0.6.0"  # a dot in the class
    return "0.5.0"  # hostPath of nodes, names that begin with a digit


def _edits(name: str, edits: ContainerEdits) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if edits.env:
        out["env"] = [_variable(name, key, value) for key, value in edits.env]
    if edits.device_nodes:
        out["deviceNodes"] = [_node(name, node) for node in edits.device_nodes]
    if edits.mounts:
        out["mounts"] = [
            {
                "hostPath": _path(name, mount.host_path),
                "containerPath": _path(name, mount.container_path),
                "options": [_option(name, option) for option in mount.options],
            }
            for mount in edits.mounts
        ]
    if edits.additional_gids:
        if any(not 0 < gid < 2**32 for gid in edits.additional_gids):
            raise _bad(f"{name}: group ids must be from 1 to 4294967295, not {edits.additional_gids}")
        out["additionalGids"] = list(edits.additional_gids)
    if not out:
        raise _bad(f"device {name} has no edits")
    return out


def _variable(name: str, key: str, value: str) -> str:
    if not _VARIABLE.fullmatch(key) or "\0" in value:
        raise _bad(f"{name}: {key!r} is not a variable name, or its value has a zero byte")
    return f"{key}={value}"


def _node(name: str, node: DeviceNode) -> dict[str, Any]:
    out: dict[str, Any] = {"path": _path(name, node.path)}
    if node.host_path and node.host_path != node.path:
        out["hostPath"] = _path(name, node.host_path)
    if node.type:
        if not (0 <= node.major < 2**32 and 0 <= node.minor < 2**32):
            raise _bad(f"{name}: device number {node.major}:{node.minor} is out of range")
        out |= {"type": node.type, "major": node.major, "minor": node.minor}
    if not node.permissions or not _PERMISSIONS.fullmatch(node.permissions):
        raise _bad(f"{name}: permissions {node.permissions!r} are not a subset of rwm")
    out["permissions"] = node.permissions
    for key, value in (("fileMode", node.file_mode), ("uid", node.uid), ("gid", node.gid)):
        if value is not None:
            if not 0 <= value < 2**32:
                raise _bad(f"{name}: {key} {value} is out of range")
            out[key] = value
    return out


def _path(name: str, path: str) -> str:
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise _bad(f"{name}: {path!r} is not an absolute path without '..'")
    return path


def _option(name: str, option: str) -> str:
    if not option or not option.isascii() or not option.isprintable():
        raise _bad(f"{name}: mount option {option!r} is not printable ASCII")
    return option


def _bad(what: str) -> CalabashError:
    return CalabashError(f"not a CDI spec: {what}", reason=Reason.BAD_REQUEST, hint="this is a bug in Calabash")
