"""Read and write token files, which `server token create` writes and `remote add` reads.

A token file contains a token, the fingerprint of its server's certificate, and optional server addresses. A user who
can read the file can use the devices. A file that other users can read is therefore refused.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from calabash.model.errors import CalabashError, Reason

FILE_BYTES_MAX = 64 * 1024
_FIELDS = {
    "token": re.compile(r"[A-Za-z0-9._-]{16,2048}"),
    "certificate": re.compile(r"sha256:[0-9a-f]{64}"),
    "server": re.compile(r"[^\s,]{1,255}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenToken:
    """Content of a token file.

    Args:
        token: the token.
        certificate: fingerprint of the server's certificate.
        servers: addresses of the server, ``HOST:PORT``.
    """

    token: str = field(repr=False)
    certificate: str
    servers: tuple[str, ...] = ()

    def text(self, *, name: str) -> str:
        """Return the text of the file for a token of account ``name``."""
        lines = [f"# This file allows the use of GPUs on the account of {name}. Keep it secret."]
        lines += [f"token = {self.token}", f"certificate = {self.certificate}"]
        return "\n".join([*lines, *(f"server = {server}" for server in self.servers)]) + "\n"


def parse_token_file(text: str, *, what: str) -> GivenToken:
    """Parse the text of a token file; ``what`` names the source in messages.

    Raises:
        CalabashError: BAD_FILE with the number of the invalid line, never with its content.
    """
    found: dict[str, list[str]] = {name: [] for name in _FIELDS}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, value = (part.strip() for part in line.partition("="))
        pattern = _FIELDS.get(name)
        if pattern is None or pattern.fullmatch(value) is None or (found[name] and name != "server"):
            raise _bad(f"{what} is no token file: line {number} is not understood")
        found[name].append(value)
    if not found["token"] or not found["certificate"]:
        raise _bad(f"{what} is no token file: it has no {'certificate' if found['token'] else 'token'}")
    return GivenToken(token=found["token"][0], certificate=found["certificate"][0], servers=tuple(found["server"]))


def read_token_file(path: Path) -> GivenToken:
    """Read a token file, or standard input for ``-``.

    Raises:
        CalabashError: BAD_FILE if it is not a token file, NOT_PERMITTED if users other than its owner can read it.
    """
    if str(path) == "-":
        return parse_token_file(sys.stdin.read(FILE_BYTES_MAX), what="standard input")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _bad(f"{path} is not a file")
        if status.st_mode & 0o077:
            raise CalabashError(
                f"{path} can be read by others (mode {stat.S_IMODE(status.st_mode):04o})",
                reason=Reason.NOT_PERMITTED,
                hint=f"chmod 600 {path}; if another user may have read it, have the token revoked",
            )
        content = source.read(FILE_BYTES_MAX)
    return parse_token_file(content.decode(errors="replace"), what=str(path))


def _bad(message: str) -> CalabashError:
    return CalabashError(
        message, reason=Reason.BAD_FILE, hint="use the file that `calabash remote server token create` has written"
    )
