"""Settings of the network controller: ``network.toml`` in the pool's home. While the file exists, the pool runs a controller.

northbound = "unix:/run/calabash-net/cb/central/nb.sock"      # comma-separated servers of a cluster
southbound = "ssl:172.30.0.1:6642"
ca = "/etc/calabash/ovn/ca.pem"                               # for ssl: the CA, and the certificate of the controller
certificate = "/etc/calabash/ovn/netd.pem"
key = "/etc/calabash/ovn/netd.key"
gateways = ["g1", "g2"]                                       # empty: hosts that announce themselves as gateways
rest_s = 300                                                  # hold-down time before a returned gateway host takes traffic
lab = "cb"                                                    # prefix of a lab on this machine
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from calabash.adapters.ovn.wire import Credentials, checked_remotes
from calabash.controllers.status.gateway_hold_down import REST_S
from calabash.model.addresses import Network, parse_network
from calabash.model.errors import CalabashError, Reason

NETWORK_FILE = "network.toml"
METADATA = "169.254.169.254/32"
_BYTES_MAX = 1 << 16
Remotes = Annotated[str, Meta(min_length=1, max_length=1000)]
PathText = Annotated[str, Meta(max_length=1000)]


class NetworkConnection(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Contents of ``network.toml``.

    Args:
        protected: ranges of the platform's own networks, which tenants must not reach. The module describes the others.
    """

    northbound: Remotes
    southbound: Remotes
    ca: PathText = ""
    certificate: PathText = ""
    key: PathText = ""
    lab: Annotated[str, Meta(max_length=8, pattern=r"^([a-z][a-z0-9]*)?\Z")] = ""
    gateways: Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=64)] = []
    rest_s: Annotated[float, Meta(ge=1, le=86400)] = REST_S
    protected: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] = []

    def ranges(self) -> tuple[Network, ...]:
        """Return the protected ranges and the address of cloud metadata services. Raises CalabashError."""
        return tuple(parse_network(text, "protected") for text in (*self.protected, METADATA))

    def credentials(self) -> Credentials | None:
        """Return the TLS files, or None if none is set. Raises CalabashError if only some are set."""
        named = (self.ca, self.certificate, self.key)
        if not any(named):
            return None
        if not all(named):
            raise CalabashError("ca, certificate and key must be set together", hint="set all three, or none")
        return Credentials(ca=Path(self.ca), certificate=Path(self.certificate), key=Path(self.key))


def read_connection(home: Path) -> NetworkConnection | None:
    """Return the settings, or None if the pool has no networks. Raises CalabashError (BAD_FILE)."""
    path = home / NETWORK_FILE
    try:
        with open(path, "rb") as file:
            content = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CalabashError(f"{path} cannot be read: {error}", reason=Reason.BAD_FILE) from error
    try:
        found = msgspec.toml.decode(content, type=NetworkConnection)
        checked_remotes(found.northbound)
        checked_remotes(found.southbound)
        found.credentials()
        found.ranges()
    except (msgspec.ValidationError, msgspec.DecodeError, CalabashError) as error:
        problem = error.message if isinstance(error, CalabashError) else str(error)
        raise CalabashError(f"{path}: {problem}", reason=Reason.BAD_FILE, hint="see docs: networks") from error
    return found


def write_connection(home: Path, connection: NetworkConnection) -> None:
    """Write the settings; the pool then runs a controller."""
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in msgspec.to_builtins(connection).items() if value]
    new = home / f"{NETWORK_FILE}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(lines)
    new.rename(home / NETWORK_FILE)


def remove_connection(home: Path) -> bool:
    """Delete the settings; the pool then stops its controller, and OVN keeps its rows. Return True if the file existed."""
    try:
        (home / NETWORK_FILE).unlink()
    except FileNotFoundError:
        return False
    return True
