"""UFM's REST API for P_Keys: ``/ufmRest/resources/pkeys``; with a token ``/ufmRestV3``.

Answers are decoded strictly: an HTML page or a truncated list is an error.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from calabash.adapters.host.files import private_text
from calabash.model.errors import CalabashError, Reason
from calabash.transport.web import AddressRule, WebClient

ANSWER_BYTES_MAX = 32 << 20  # 40,000 ports with 64 bytes each in several partitions
GUIDS_PER_REQUEST = 100  # they stand in the URL of a removal, which may have 2048 characters
_ABSENT = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class UfmServer:
    """Address and credentials of a UFM server.

    Args:
        token_file: file with a token; "" to log in with ``user`` and the password in ``password_file``. Both files must
            be readable by their owner only.
        authority: PEM file of the authorities that may sign the server's certificate; "" for those of the system.
    """

    url: str
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    authority: str = ""
    timeout_s: float = 10.0


class PkeyMember(msgspec.Struct, frozen=True):
    """Port in a partition. Ports with ``membership`` "limited" cannot communicate with each other."""

    guid: Annotated[str, Meta(pattern="^(0x)?[0-9A-Fa-f]{16}$")]
    membership: Literal["full", "limited"]

    @property
    def address(self) -> str:
        """GUID as 16 lower-case hexadecimal digits."""
        return self.guid.lower().removeprefix("0x")


class Pkey(msgspec.Struct, frozen=True):
    """Partition with its name and members."""

    guids: tuple[PkeyMember, ...]
    partition: str = ""


class UfmClient:
    """Client of UFM; safe for threads, keeps no connection. ``number`` is the P_Key of a partition.

    Every call raises CalabashError: UNREACHABLE or TIMEOUT without an answer, NOT_AUTHENTICATED, CONFLICT if the
    manager refuses, BAD_FILE if its answer cannot be decoded.
    """

    def __init__(self, server: UfmServer) -> None:
        self._web = WebClient(
            rule=AddressRule(everything=True),  # the address comes from an administrator
            authority=server.authority,
            timeout_s=server.timeout_s,
            bytes_max=ANSWER_BYTES_MAX,
        )
        if server.token_file:
            self._base, credential = f"{server.url.rstrip('/')}/ufmRestV3", private_text(server.token_file)
        else:
            password = private_text(server.password_file) if server.password_file else ""
            credential = base64.b64encode(f"{server.user}:{password}".encode()).decode()
            self._base = f"{server.url.rstrip('/')}/ufmRest"
        self._headers = {"Authorization": f"Basic {credential}", "Content-Type": "application/json"}

    def pkeys(self) -> dict[int, Pkey]:
        """Return all partitions with their members, by P_Key. Raises CalabashError."""
        content = self._ask("GET", "/resources/pkeys/?guids_data=true")
        try:
            found = msgspec.json.decode(content, type=dict[str, Pkey])
            return {int(number, 16): pkey for number, pkey in found.items()}
        except (ValueError, msgspec.MsgspecError) as error:
            raise CalabashError(
                f"the fabric's manager answers what is not understood: {error}",
                reason=Reason.BAD_FILE,
                hint="is the URL UFM's own, without a path?",
            ) from None

    def create(self, number: int, name: str) -> None:
        """Create an empty partition."""
        self._ask("POST", "/resources/pkeys/add", {"pkey": hex(number), "partition_name": name, "ip_over_ib": True})

    def add(self, number: int, guids: Collection[str]) -> None:
        """Add the ports with these GUIDs to a partition as full members."""
        for some in _portions(guids):
            body = {"pkey": hex(number), "guids": some, "membership": "full", "index0": False, "ip_over_ib": True}
            self._ask("POST", "/resources/pkeys/", body)

    def remove(self, number: int, guids: Collection[str]) -> None:
        """Remove ports from a partition; ports that are not members are ignored."""
        for some in _portions(guids):
            self._ask("DELETE", f"/resources/pkeys/{number:#x}/guids/{','.join(some)}", absent=True)

    def delete(self, number: int) -> None:
        """Delete the partition; does nothing if it does not exist."""
        self._ask("DELETE", f"/resources/pkeys/{number:#x}", absent=True)

    def _ask(self, method: str, path: str, body: object = None, *, absent: bool = False) -> bytes:
        content = b"" if body is None else msgspec.json.encode(body)
        answer = self._web.ask(method, self._base + path, content, headers=self._headers)
        if 200 <= answer.status < 300 or (absent and answer.status == _ABSENT):
            return answer.content
        if answer.status in {401, 403}:
            raise CalabashError(
                "the fabric's manager does not know us",
                reason=Reason.NOT_AUTHENTICATED,
                hint="see user, password_file and token_file in fabric.toml",
            )
        reason = Reason.UNREACHABLE if answer.status >= 500 else Reason.CONFLICT
        raise CalabashError(f"the fabric's manager answers {method} with status {answer.status}", reason=reason)


def _portions(guids: Collection[str]) -> list[list[str]]:
    ordered = sorted(guids)
    return [ordered[i : i + GUIDS_PER_REQUEST] for i in range(0, len(ordered), GUIDS_PER_REQUEST)]
