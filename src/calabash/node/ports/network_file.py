"""The file ``network-host.toml`` in the pool's home, which names the switch of this host.

name = "h1"                                   # of its chassis
switch = "unix:/run/openvswitch/db.sock"      # the database of its Open vSwitch
namespace = "/run/netns/cb-h1"                # the network namespace that the switch is in; left out: this machine's own

``calabash net up`` writes the file if it creates the network's hosts as namespaces of this machine. If OVN is already
installed, an administrator writes the file. It is read whenever the switch is opened, so that a network may be started
after the pool.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.adapters.host.files import write_durably
from calabash.model.errors import CalabashError, Reason
from calabash.node.ports.switch import OwnedPorts

HOST_FILE = "network-host.toml"


class HostPlace(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Content of ``network-host.toml``: the host's name in the network, and the host's switch."""

    switch: Annotated[str, Meta(max_length=512, pattern=r"^unix:/[^\x00]*\Z")]
    name: Annotated[str, Meta(max_length=64)] = ""
    namespace: Annotated[str, Meta(max_length=512, pattern=r"^(/[^\x00]*)?\Z")] = ""


def read_host_place(home: Path) -> HostPlace | None:
    """Return the content of ``network-host.toml`` in the pool's home; None if there is no file. Raises BAD_FILE."""
    path = home / HOST_FILE
    try:
        return msgspec.toml.decode(path.read_bytes(), type=HostPlace)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, msgspec.ValidationError, OSError, UnicodeDecodeError) as error:
        raise CalabashError(
            f"{path} cannot be used: {error}", reason=Reason.BAD_FILE, hint="`calabash net up` writes it"
        ) from error


def write_host_place(home: Path, place: HostPlace) -> None:
    """Write ``network-host.toml`` durably; fields without a value are left out. Raises OSError."""
    lines = [f"{name} = {_quoted(value)}\n" for name, value in msgspec.to_builtins(place).items() if value]
    write_durably(home / HOST_FILE, "".join(lines).encode())


def host_switch(home: Path) -> OwnedPorts | None:
    """Open the switch that ``network-host.toml`` names; None if there is no such file. Raises CalabashError."""
    host = read_host_place(home)
    if host is None:
        return None
    return OwnedPorts(host.switch, Path(host.namespace) if host.namespace else None)


def _quoted(text: str) -> str:
    """Return the text as a basic string of TOML."""
    return msgspec.json.encode(text).decode()
