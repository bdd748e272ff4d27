"""Translate errors of the database drivers to CalabashError with a reason and a hint."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from calabash.model.errors import CalabashError, Reason

_FULL_WORDS = ("database or disk is full", "no space left", "disk full", "could not extend file")
_POSTGRES_DISK_FULL = "53100"
_SQLITE_DAMAGED = {11, 26}  # SQLITE_CORRUPT, SQLITE_NOTADB
_SQLITE_PRIMARY_CODE = 0xFF
_POSTGRES_DAMAGED = ("XX001", "XX002")  # data_corrupted, index_corrupted


def public_url(url: str) -> str:
    """Return the URL without its password, for messages and logs."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return "(unreadable database URL)"


def damaged(url: str, found: str) -> CalabashError:
    """Return the error of a database whose content is corrupt; ``found`` describes the damage."""
    return CalabashError(
        f"database {public_url(url)} is damaged: {found}",
        reason=Reason.STORE_DAMAGED,
        hint="running programs are not affected; stop the pool and restore a backup: calabash backup restore",
    )


def translated(error: DBAPIError, url: str) -> CalabashError:
    """Return the CalabashError for a driver's error, with the first line of its message."""
    original = error.orig
    words = (str(original).strip().splitlines() or [type(original).__name__])[0]
    full = getattr(original, "sqlstate", None) == _POSTGRES_DISK_FULL or any(w in str(original) for w in _FULL_WORDS)
    if full:
        return CalabashError(
            f"database {public_url(url)}: the disk is full ({words})",
            reason=Reason.DISK_FULL,
            hint="free some space; running programs are not affected",
        )
    code = getattr(original, "sqlite_errorcode", 0) & _SQLITE_PRIMARY_CODE
    if code in _SQLITE_DAMAGED or getattr(original, "sqlstate", None) in _POSTGRES_DAMAGED:
        return damaged(url, words)
    if isinstance(error, OperationalError):
        return CalabashError(
            f"database {public_url(url)} does not answer: {words}",
            reason=Reason.STORE_UNAVAILABLE,
            hint="check that the server runs and the URL, user and file permissions are right",
        )
    return CalabashError(
        f"database {public_url(url)} refused a statement: {words}",
        reason=Reason.STORE_UNAVAILABLE,
        hint="the schema may have been changed by hand; restore it from a backup",
    )
