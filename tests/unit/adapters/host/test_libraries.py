"""Libraries of a host seen from the agent's image: found by the host's loader cache, through links, never outside."""

from __future__ import annotations

import platform
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.adapters.host.libraries import cached_libraries, follow, libraries_named

_X86, _I386, _ARM = 0x0303, 0x0003, 0x0A03


def cache(*entries: tuple[int, str, str], before: bytes = b"") -> bytes:
    """A cache of the loader, as ``ldconfig`` writes it."""
    texts, rows = b"", b""
    offset = 48 + 24 * len(entries)
    for flags, name, path in entries:
        places = []
        for text in (name, path):
            places.append(offset + len(texts))
            texts += text.encode() + b"\0"
        rows += struct.pack("<iIIIQ", flags, *places, 0, 0)
    header = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries), len(texts), 2, 0)
    return before + header + rows + texts


def test_loader_cache_names_the_libraries_of_this_architecture() -> None:
    content = cache(
        (_X86, "libcuda.so.1", "/opt/driver/libcuda.so.1"),
        (_I386, "libcuda.so.1", "/usr/lib32/libcuda.so.1"),
        (_ARM, "libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1"),
        before=b"ld.so-1.7.0\0" + bytes(100),
    )
    assert cached_libraries(content, "x86_64") == {"libcuda.so.1": ["/opt/driver/libcuda.so.1"]}
    assert cached_libraries(content, "aarch64") == {"libcuda.so.1": ["/usr/lib/aarch64-linux-gnu/libcuda.so.1"]}


@pytest.mark.skipif(shutil.which("ldconfig") is None, reason="no ldconfig to compare with")
def test_loader_cache_of_this_machine_is_read_as_by_ldconfig() -> None:
    said = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    kind = {"x86_64": "x86-64", "aarch64": "AArch64"}[platform.machine()]
    expected: dict[str, set[str]] = {}
    for name, path in re.findall(rf"^\t(\S+) \([^)]*{kind}[^)]*\) => (\S+)$", said, re.MULTILINE):
        expected.setdefault(name, set()).add(path)
    found = cached_libraries(Path("/etc/ld.so.cache").read_bytes())
    assert expected
    assert {name: set(paths) for name, paths in found.items()} == expected


@given(st.binary(max_size=200), st.binary(max_size=200), st.booleans())
def test_reading_an_invalid_loader_cache_never_fails(head: bytes, tail: bytes, marked: bool) -> None:
    found = cached_libraries(head + (b"glibc-ld.so.cache1.1" if marked else b"") + tail, "x86_64")
    assert all(name for name in found)


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_truncated_loader_cache_yields_its_complete_entries(cut: int) -> None:
    content = cache((_X86, "libcuda.so.1", "/opt/libcuda.so.1"))[: -1 - cut]
    for paths in cached_libraries(content, "x86_64").values():
        assert paths in (["/opt/libcuda.so.1"], [""])


def test_links_are_resolved_within_the_host_root(tmp_path: Path) -> None:
    root = tmp_path / "host"
    (root / "usr/lib/driver").mkdir(parents=True)
    (root / "etc/alternatives").mkdir(parents=True)
    real = root / "usr/lib/driver/libcuda.so.580.1"
    real.touch()
    (root / "usr/lib/libcuda.so.1").symlink_to("/etc/alternatives/libcuda")
    (root / "etc/alternatives/libcuda").symlink_to("../../../../../usr/lib/driver/libcuda.so.580.1")
    (root / "lib").symlink_to("usr/lib")
    assert follow(root, "/lib/libcuda.so.1") == real
    assert follow(root, "/usr/lib/driver") is None, "a directory is no library"
    assert follow(root, "/nowhere") is None
    (root / "a").symlink_to("/b")
    (root / "b").symlink_to("/a")
    assert follow(root, "/a") is None
    (root / "out").symlink_to(f"{tmp_path}/outside")
    (tmp_path / "outside").touch()
    assert follow(root, "/out") is None, "it means another file there"


def test_loader_cache_is_searched_before_the_default_directories(tmp_path: Path) -> None:
    machine_flag = {"x86_64": _X86, "aarch64": _ARM}[platform.machine()]
    for directory in ("opt/driver", "usr/lib64", "etc"):
        (tmp_path / directory).mkdir(parents=True)
    for directory in ("opt/driver", "usr/lib64"):
        (tmp_path / directory / "libnvidia-ml.so.1").touch()
    found = list(libraries_named(tmp_path, "libnvidia-ml.so.1", ["/usr/lib64", "/usr/lib"]))
    assert found == [tmp_path / "usr/lib64/libnvidia-ml.so.1"]
    (tmp_path / "etc/ld.so.cache").write_bytes(
        cache((machine_flag, "libnvidia-ml.so.1", "/opt/driver/libnvidia-ml.so.1"))
    )
    first = next(libraries_named(tmp_path, "libnvidia-ml.so.1", ["/usr/lib64"]))
    assert first == tmp_path / "opt/driver/libnvidia-ml.so.1"
