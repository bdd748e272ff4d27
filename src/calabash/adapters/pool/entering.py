"""Lease and environment of a program that starts in a slice.

Imported by ``calabash run``: imports nothing slow.
"""

from __future__ import annotations

import os

from calabash.model.errors import CalabashError, Reason

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping

_MERGED = ("LD_PRELOAD", "LD_LIBRARY_PATH")
_CARD_NAMES, _SHIM = ("GPU-", "MIG-"), "libcalabash.so"
_OF_A_SLICE = ("CALABASH_SLOT", "CALABASH_SIM")


def hold_lease(path: str) -> None:
    """Lock the lease file shared, on a descriptor that the program inherits.

    Raises CalabashError(CONFLICT) if the slice was reclaimed meanwhile.
    """
    import fcntl  # noqa: PLC0415 - only where the lease is a lock

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise CalabashError(
            f"the slice was reclaimed before the program started ({error.strerror})",
            reason=Reason.CONFLICT,
            hint="try again",
        ) from error
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.set_inheritable(descriptor, True)


def require_loadable(granted: Mapping[str, str]) -> None:
    """Raise NOT_PERMITTED if this user cannot read a library that the program must preload.

    The dynamic loader would leave the library out, and the program would run without the limits of its slice.
    """
    for library in granted.get("LD_PRELOAD", "").split(":"):
        if library and not os.access(library, os.R_OK):
            raise CalabashError(
                f"this user cannot read {library}, which keeps programs to the size of their slices",
                reason=Reason.NOT_PERMITTED,
                hint="have root run `calabash doctor`, which names the directory that shuts other users out",
            )


def outside_of_slices(before: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process without the variables of its slice.

    The environment is for a program on devices of another machine. Those devices have other UUIDs, and the slice does
    not limit them. ``CUDA_VISIBLE_DEVICES`` is therefore removed if it has UUIDs, and kept if the user chose devices by
    number.
    """
    environment = dict(before)
    if not any(name in before for name in (*_OF_A_SLICE, "CALABASH_REMOTE")):
        return environment
    if before.get("CUDA_VISIBLE_DEVICES", "").startswith(_CARD_NAMES):
        del environment["CUDA_VISIBLE_DEVICES"]
    preloaded = [word for word in before.get("LD_PRELOAD", "").split(":") if os.path.basename(word) != _SHIM]
    environment["LD_PRELOAD"] = ":".join(preloaded)
    return environment


def environment_with(
    before: Mapping[str, str], granted: Mapping[str, str], *, brokered: bool = False
) -> dict[str, str]:
    """Return the environment with the slice's variables.

    A search path, such as LD_LIBRARY_PATH, is put in front of the existing value; other variables are replaced.

    Args:
        before: environment of the process that starts the program.
        granted: variables of the slice.
        brokered: True if the program uses remote devices through a worker. Variables of a slice or simulated node of
            the calling process are then removed.
    """
    environment = dict(before)
    for name in _OF_A_SLICE if brokered else ():
        environment.pop(name, None)
    for name, value in granted.items():
        known = environment.get(name)
        environment[name] = f"{value}:{known}" if name in _MERGED and known else value
    return environment
