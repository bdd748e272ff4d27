"""Start of a server: it is refused if this build has no TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from calabash.broker.server import serve
from calabash.broker.server.broker import ServerSettings
from calabash.model.errors import CalabashError, Reason


def test_server_of_a_build_without_tls_is_refused_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "tls_library", lambda: tmp_path / "libcalabash-tls.so")
    with pytest.raises(CalabashError, match=r"has no TLS, .*libcalabash-tls.so does not exist") as error:
        serve.run_server(tmp_path / "server", ServerSettings(name="lab01"), tmp_path / "pool.sock", address=None)
    assert error.value.reason == Reason.UNSUPPORTED
    assert "install libssl-dev" in error.value.hint
    assert not (tmp_path / "server").exists()
    (tmp_path / "libcalabash-tls.so").touch()
    serve.require_tls()
