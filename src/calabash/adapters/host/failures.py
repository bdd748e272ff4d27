"""Translation of operating system errors to reasons.

A call that failed because this process or the machine has run out of a resource says nothing about its object: the
error is neither a missing permission nor proof that a file, a group or a process is gone.
"""

from __future__ import annotations

import errno
import os

from calabash.model.errors import CalabashError, Reason

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REASONS = (
    (EXHAUSTED, Reason.OVERLOADED, "try again later; an administrator may raise the limit of open files of the pool"),
    (FULL, Reason.DISK_FULL, "free some space; running programs are not affected"),
    (frozenset({errno.ENOENT, errno.ESRCH}), Reason.NOT_FOUND, ""),
    (frozenset({errno.EACCES, errno.EPERM}), Reason.NOT_PERMITTED, ""),
)


def failure(error: OSError, what: str, *, hint: str = "", full_hint: str = "") -> CalabashError:
    """Return the error for a failed system call.

    Args:
        what: the failed step, "cannot write the slot /x".
        hint: hint of the error if the permission is missing, or if this function has no hint for the error number.
        full_hint: hint if space is missing, for space that is not on a disk; "" gives the usual hint for a full disk.
    """
    message = f"{what}: {os.strerror(error.errno).lower() if error.errno else error}"
    for numbers, reason, own_hint in _REASONS:
        if error.errno in numbers:
            said = full_hint if reason is Reason.DISK_FULL and full_hint else own_hint or hint
            return CalabashError(message, reason=reason, hint=said)
    return CalabashError(message, reason=Reason.HOST_FAILED, hint=hint or "see the kernel's log: dmesg")


def raise_if_exhausted(error: OSError) -> None:
    """Raise OVERLOADED if the error says that this process or the machine has run out of a resource.

    Does nothing for other errors, which are about the object of the call.
    """
    if error.errno in EXHAUSTED:
        raise failure(error, "the state of this machine cannot be read") from error


def require_descriptor() -> None:
    """Raise OVERLOADED if this process can open no file.

    Called when a user is not found: the name service of the C library also reports an unknown user if it could not open
    its database.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise_if_exhausted(error)
