"""Write, list and remove CDI spec files; a file is replaced atomically."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from calabash.adapters.cdi.edits import ContainerEdits, spec
from calabash.model.errors import CalabashError, Reason

SPEC_BYTES_MAX = 1 << 20
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_TEMPORARY = ".new"  # runtimes read only what ends in .json or .yaml


class _Device(msgspec.Struct, frozen=True):
    name: str


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    devices: tuple[_Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """CDI spec file of a directory: file name without ``.json``, kind, and device names."""

    name: str
    kind: str
    devices: tuple[str, ...]


def write_spec(directory: Path, name: str, kind: str, devices: Mapping[str, ContainerEdits]) -> None:
    """Write ``directory/name.json``, replacing an existing file; create the directory if it is missing.

    The file can be read by root only, because it names claims and slots of tenants. It is not synced to disk: the
    directory is empty after a restart of the machine anyway.

    Args:
        kind: ``vendor/class`` of the devices.
        devices: edits by device name.

    Raises:
        CalabashError: BAD_REQUEST if the spec is not valid, TOO_LARGE above SPEC_BYTES_MAX, BAD_FILE if the file cannot
            be written.
    """
    try:
        body = msgspec.json.encode(spec(kind, dict(devices)))
    except UnicodeEncodeError as error:
        raise CalabashError(f"CDI spec {name}: a text is not valid Unicode", reason=Reason.BAD_REQUEST) from error
    if len(body) > SPEC_BYTES_MAX:
        raise CalabashError(f"CDI spec {name}: {len(body)} bytes, at most {SPEC_BYTES_MAX}", reason=Reason.TOO_LARGE)
    target = _target(directory, name)
    temporary = target.with_name(f"{name}.{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(file, 0o600)
            with os.fdopen(file, "wb", closefd=False) as out:
                out.write(body)
        finally:
            os.close(file)
        temporary.rename(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise _unwritable(target, error) from error


def remove_spec(directory: Path, name: str) -> bool:
    """Remove ``directory/name.json``; return False if the file does not exist.

    Raises CalabashError(BAD_FILE) if it cannot be removed.
    """
    try:
        _target(directory, name).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unwritable(directory / name, error) from error
    return True


def list_specs(directory: Path, prefix: str = "") -> tuple[SpecFile, ...]:
    """Return the specs whose file name begins with ``prefix``, ordered by name.

    A file that is not a valid spec is returned with kind "" and without devices, so that the caller can remove it.
    Raises CalabashError(BAD_FILE) if the directory cannot be read.
    """
    found = []
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.name.endswith(".json"))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unwritable(directory, error) from error
    for file_name in names:
        name = file_name.removesuffix(".json")
        if name.startswith(prefix) and _FILE.fullmatch(name):
            found.append(_read(directory, name))
    return tuple(found)


def sweep_leftovers(directory: Path, prefix: str) -> int:
    """Remove temporary files that crashed writers have left; return the number of removed files.

    Only files whose name begins with ``prefix`` are removed. The caller must be the only writer of such files.
    """
    count = 0
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(_TEMPORARY):
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)
                    count += 1
    return count


def _read(directory: Path, name: str) -> SpecFile:
    try:
        file = os.open(directory / f"{name}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as source:
            body = source.read(SPEC_BYTES_MAX + 1)
        read = msgspec.json.decode(body, type=_Spec)
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return SpecFile(name=name, kind="", devices=())
    return SpecFile(name=name, kind=read.kind, devices=tuple(device.name for device in read.devices))


def _target(directory: Path, name: str) -> Path:
    if not _FILE.fullmatch(name):
        raise CalabashError(f"{name!r} is not a valid name of a CDI spec file", reason=Reason.BAD_REQUEST)
    return directory / f"{name}.json"


def _unwritable(path: Path, error: OSError) -> CalabashError:
    return CalabashError(
        f"CDI spec {path}: {error.strerror}",
        reason=Reason.BAD_FILE,
        hint="the agent must be able to write to the directory of dynamic CDI specs, /var/run/cdi",
    )
