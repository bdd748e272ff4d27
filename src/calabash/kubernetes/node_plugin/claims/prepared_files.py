"""Files of prepared claims: the CDI names with which the kubelet's calls were answered, one file per claim.

The file of a claim is called its note. It is needed because the journal does not contain the CDI names, and a claim
must keep its name from the first time that it is prepared until it is unprepared: the kubelet stores the names of
earlier answers, also across restarts of the machine, and passes old and new names together to a container. When the
claim is prepared again after that, it gets a new name. A container runtime that is given the outdated name then fails
to find a CDI device, instead of using an outdated one.
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
    """The note of a claim that is prepared or about to be prepared.

    Args:
        namespace, name, uid: identity of the claim object.
        nonce: random text that makes the claim's CDI names differ from those of its earlier preparations.
    """

    namespace: str
    name: str
    uid: str
    nonce: str

    @property
    def ref(self) -> ClaimRef:
        """The claim as the kubelet identifies it: by namespace, UID and name."""
        return ClaimRef(namespace=self.namespace, uid=self.uid, name=self.name)

    def device(self, request: int) -> str:
        """Return the CDI device name of a request of the claim, by its number."""
        return f"{self.uid}-{self.nonce}-{request}"


class ClaimNotes:
    """The notes (files) of all prepared claims, in one directory, which is created when it is needed.

    Methods may be called from any thread, but only one thread at a time may call them for the same claim.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._settled: set[str] = set()

    def ensure(self, claim: ClaimRef) -> ClaimNote:
        """Return the note of a claim; write a new note if there is none.

        Raises:
            CalabashError: the note cannot be written.
        """
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
        """Sync the note of a claim to disk. Must be called before the kubelet gets the claim's CDI names.

        Raises:
            CalabashError: the note cannot be synced.
        """
        if claim.uid in self._settled:
            return
        path = self._path(claim.uid)
        try:
            settle(path)
        except OSError as error:
            raise _unwritten(claim, path, error) from error
        self._settled.add(claim.uid)

    def find(self, uid: str) -> ClaimNote | None:
        """Return the note of a claim; None if there is none or it is invalid."""
        return _read(self._path(uid)) if _UID.fullmatch(uid) else None

    def remove(self, uid: str) -> None:
        """Delete the note (file) of a claim."""
        self._settled.discard(uid)
        if _UID.fullmatch(uid):
            with suppress(OSError):
                self._path(uid).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove temporary files of agents that were killed while writing. Called before any note is written."""
        with suppress(OSError):
            for name in os.listdir(self._directory):
                if name.startswith(".") and name.endswith(".new"):
                    (self._directory / name).unlink()

    def all(self) -> list[ClaimNote]:
        """Return the valid notes of all prepared claims."""
        try:
            names = sorted(name for name in os.listdir(self._directory) if _UID.fullmatch(name))
        except OSError:
            return []
        return [note for name in names if (note := _read(self._directory / name)) is not None]

    def _path(self, uid: str) -> Path:
        if not _UID.fullmatch(uid):
            raise CalabashError(
                f"{uid[:64]!r} is not the UID of a claim",
                reason=Reason.BAD_REQUEST,
                hint="use the UID in the claim's metadata",
            )
        return self._directory / uid


def _unwritten(claim: ClaimRef, path: Path, error: OSError) -> CalabashError:
    return CalabashError(
        f"claim {claim.namespace}/{claim.name} cannot be recorded in {path}: {error.strerror}",
        reason=Reason.DISK_FULL if error.errno in {28, 122} else Reason.BAD_FILE,
        hint="make sure that the agent's directory is writable; the kubelet tries again",
    )


def _read(path: Path) -> ClaimNote | None:
    try:
        with path.open("rb") as file:
            note = msgspec.json.decode(file.read(_BYTES_MAX), type=ClaimNote)
    except (OSError, msgspec.DecodeError, UnicodeError):
        return None
    return note if note.uid == path.name else None
