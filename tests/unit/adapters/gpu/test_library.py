"""Paths of the native libraries: the library with TLS accompanies the libraries that load it, if this build has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.adapters.gpu import library


@pytest.mark.parametrize("has_tls", [True, False])
def test_forwarding_libraries_include_the_library_with_tls_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr(library, "_NATIVE", tmp_path)
    (tmp_path / "remote").mkdir()
    if has_tls:
        library.tls_library().touch()
    found = library.forwarding_libraries()
    assert {path.parent for path in found} == {tmp_path / "remote"}
    assert [path.name for path in found] == ["libcuda.so.1", "libnvidia-ml.so.1", *["libcalabash-tls.so"] * has_tls]
