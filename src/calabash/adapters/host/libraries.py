"""Find libraries of another system whose root directory is mounted in this one, such as the host of a container.

They are looked up in that system's loader cache (``ld.so.cache``), which is parsed strictly, and in given directories.
Absolute paths and symbolic links are resolved relative to that root directory.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

CACHE = "etc/ld.so.cache"
CACHE_BYTES_MAX = 16 << 20
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")  # magic, entries, bytes of strings, flags, extensions
_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, kernel, capabilities; offsets from the magic on
_MACHINE_MASK = 0xFF00
_MACHINES = {"x86_64": 0x0300, "aarch64": 0x0A00}
_LINKS_MAX = 40
_NAME_BYTES_MAX = 4096


def cached_libraries(content: bytes, machine: str = "") -> dict[str, list[str]]:
    """Return the paths in a loader cache by library name; {} if the content is not a cache.

    Args:
        machine: architecture of the libraries, as ``uname -m`` prints it; "" for that of this machine.
    """
    start = content.find(_MAGIC)
    if start < 0 or len(content) - start < _HEADER.size:
        return {}
    content = content[start:]
    wanted = _MACHINES.get(machine or platform.machine())
    _, count, _, _, _ = _HEADER.unpack_from(content)
    count = min(count, (len(content) - _HEADER.size) // _ENTRY.size)
    found: dict[str, list[str]] = {}
    for number in range(count):
        flags, name, path, _, _ = _ENTRY.unpack_from(content, _HEADER.size + number * _ENTRY.size)
        if wanted is None or flags & _MACHINE_MASK == wanted:
            found.setdefault(_string(content, name), []).append(_string(content, path))
    found.pop("", None)
    return found


def _string(content: bytes, offset: int) -> str:
    end = content.find(b"\0", offset, offset + _NAME_BYTES_MAX)
    return os.fsdecode(content[offset:end]) if end >= 0 else ""


def follow(root: Path, path: str) -> Path | None:
    """Return the file that ``path`` means inside ``root``, with links and ``..`` resolved; None if there is none."""
    left = list(reversed(PurePosixPath(path).parts))
    at: list[str] = []
    links = 0
    while left:
        part = left.pop()
        if part in {"/", ".."}:
            at = [] if part == "/" else at[:-1]
            continue
        here = root.joinpath(*at, part)
        try:
            target = os.readlink(here)
        except OSError:  # no link, or nothing
            at.append(part)
            continue
        links += 1
        if links > _LINKS_MAX:
            return None
        left += reversed(PurePosixPath(target).parts)
    found = root.joinpath(*at)
    return found if found.is_file() else None


def libraries_named(root: Path, name: str, directories: Iterable[str]) -> Iterator[Path]:
    """Yield the files of that name in a system: first those of its loader cache, then those in the directories."""
    try:
        with (root / CACHE).open("rb") as file:
            cached = cached_libraries(file.read(CACHE_BYTES_MAX))
    except OSError:
        cached = {}
    for path in (*cached.get(name, ()), *(f"{directory}/{name}" for directory in directories)):
        found = follow(root, path)
        if found is not None:
            yield found
