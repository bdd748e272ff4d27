"""Claims that a kubelet was told are prepared, by one small file each: which CDI names it was answered.

The journal says what is granted; it does not say by which names containers ask for it. A kubelet keeps the names of its last
answer beyond restarts of its own and of the machine, and gives a container old and new ones. So a claim has one name from the
first time that it is prepared until it is given back, and a new one after that: a runtime that has missed a change finds no
file, never what was in force before.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from calabash.adapters.host.files import settle, write_ahead
from calabash.adapters.kubelet import ClaimRef
from calabash.model.errors import CalabashError, Reason

_NONCE_BYTES = 6
_UID = re.compile(r"[0-9a-z][0-9a-z-]{0,62}")
_BYTES_MAX = 4096


class ClaimNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A claim that is, or is about to be, prepared. ``nonce`` is what its CDI names have that no others have."""

    namespace: str
    name: str
    uid: str
    nonce: str

    @property
    def ref(self) -> ClaimRef:
        """As the kubelet names it."""
        return ClaimRef(namespace=self.namespace, uid=self.uid, name=self.name)

    def device(self, request: int) -> str:
        """The CDI device name of a request of it, by its number."""
        return f"{self.uid}-{self.nonce}-{request}"


class ClaimNotes:
    """The files of one directory, which is made when it is needed. Methods may be called from any thread, for one claim from
    one at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._settled: set[str] = set()

    def keep(self, claim: ClaimRef) -> ClaimNote:
        """The note of a claim; written if there is none. Raises CalabashError."""
        path = self._path(claim.uid)
        known = _read(path)
        if known is not None:
            return known
        note = ClaimNote(
            namespace=claim.namespace, name=claim.name, uid=claim.uid, nonce=secrets.token_hex(_NONCE_BYTES)
        )
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_ahead(path, msgspec.json.encode(note))
        except OSError as error:
            raise _unwritten(claim, path, error) from error
        return note

    def settle(self, claim: ClaimRef) -> None:
        """Its note survives a power cut from now on: before the kubelet is told its names. Raises CalabashError."""
        if claim.uid in self._settled:
            return
        path = self._path(claim.uid)
        try:
            settle(path)
        except OSError as error:
            raise _unwritten(claim, path, error) from error
        self._settled.add(claim.uid)

    def of(self, uid: str) -> ClaimNote | None:
        """The note of a claim, if there is one."""
        return _read(self._path(uid)) if _UID.fullmatch(uid) else None

    def forget(self, uid: str) -> None:
        """It is given back."""
        self._settled.discard(uid)
        if _UID.fullmatch(uid):
            with suppress(OSError):
                self._path(uid).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what writers that died have left; before anybody writes."""
        with suppress(OSError):
            for name in os.listdir(self._directory):
                if name.startswith(".") and name.endswith(".new"):
                    (self._directory / name).unlink()

    def all(self) -> list[ClaimNote]:
        """All of them; a file that is none is not heeded."""
        try:
            names = sorted(name for name in os.listdir(self._directory) if _UID.fullmatch(name))
        except OSError:
            return []
        return [note for name in names if (note := _read(self._directory / name)) is not None]

    def _path(self, uid: str) -> Path:
        if not _UID.fullmatch(uid):
            raise CalabashError(
                f"{uid[:64]!r} is no UID of a claim", reason=Reason.BAD_REQUEST, hint="the API server gives UIDs"
            )
        return self._directory / uid


def _unwritten(claim: ClaimRef, path: Path, error: OSError) -> CalabashError:
    return CalabashError(
        f"claim {claim.namespace}/{claim.name} cannot be noted in {path}: {error.strerror}",
        reason=Reason.DISK_FULL if error.errno in {28, 122} else Reason.BAD_FILE,
        hint="the agent's directory must be writable; it is tried again",
    )


def _read(path: Path) -> ClaimNote | None:
    try:
        with path.open("rb") as file:
            note = msgspec.json.decode(file.read(_BYTES_MAX), type=ClaimNote)
    except (OSError, msgspec.DecodeError, UnicodeError):
        return None
    return note if note.uid == path.name else None
