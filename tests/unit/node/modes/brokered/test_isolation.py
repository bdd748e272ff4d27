"""Sandbox of a worker host: the worker finds the library with TLS beside its own file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from calabash.adapters.gpu.library import OWN_FILES, remote_library_dir, tls_library
from calabash.node.modes.brokered.isolation import enclosure_of


def test_sandbox_of_a_worker_host_has_the_worker_and_the_library_with_tls() -> None:
    tools = SimpleNamespace(
        library=Path("/opt/libcalabash.so"), environment={"CALABASH_SIM": "/x/state"}, driver_files=OWN_FILES
    )
    record = SimpleNamespace(placement=SimpleNamespace(slices=()))
    enclosure = enclosure_of(cast(Any, tools), cast(Any, record), Path("/x/slot"), user=4711)
    worker = remote_library_dir() / "calabash-worker"
    assert {str(worker), str(tls_library())} <= set(enclosure.sees)
    assert tls_library().parent == worker.parent
