"""Pool with other adapters: a PostgreSQL journal that fails, a vendor from a package, foreign pid namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.daemons.world import World, until
from tests.postgres import Server, running_server

from calabash.model.errors import CalabashError, Reason


@pytest.fixture
def postgres() -> Iterator[Server]:
    with running_server() as server:
        yield server


def test_a_pool_keeps_its_journal_in_postgresql_and_survives_its_absence(
    make_world: Callable[..., World], postgres: Server
) -> None:
    world = make_world(database=postgres.url())
    assert world.up()["db"] == f"postgresql://calabash@127.0.0.1:{postgres.port}/postgres"
    program, allocation = world.running(memory_mib=1000, cores=10)
    with psycopg.connect(postgres.url(), autocommit=True) as connection:

        def journalled() -> list[Any]:
            return connection.execute("SELECT id, state FROM allocations").fetchall()

        until(lambda: journalled() == [(allocation["id"], "running")], what="the start to be journalled")

    postgres.stop()
    with pytest.raises(CalabashError) as caught:
        world.client.post("/v1/allocations", {"memory_mib": 1000, "cores": 10})
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert program.alive()
    assert [a["id"] for a in world.allocations()] == [allocation["id"]]
    program.finish()

    postgres.start()
    until(lambda: not world.allocations(), what="the release to be journalled")
    until(lambda: not world.slots(), what="no slot to be left")
    _, again = world.running(memory_mib=1000, cores=10)
    world.kill()
    world.up()
    assert [a["id"] for a in world.allocations()] == [again["id"]]


_ACME = """
import contextlib, os, time
from calabash.model.device import ComputeMode, Device, DeviceReading, DeviceUuid
from calabash.model.errors import CalabashError, Reason

class AcmeDriver:
    vendor = "acme"
    def driver_version(self): return "9.9"
    def devices(self):
        return tuple(
            Device(uuid=DeviceUuid(f"ACME-{i}"), index=i, vendor="acme", model="Acme 9000", memory_mib=24_000)
            for i in range(2)
        )
    def read(self, uuid):
        if os.path.exists(os.environ["ACME_LOST"]):
            raise CalabashError("it does not answer", reason=Reason.UNHEALTHY)
        return DeviceReading(uuid=uuid, memory_used_mib=7, utilization_percent=3, temperature_c=40, power_w=20.0)
    def processes(self, uuid): return ()
    def utilization(self, uuid, after_us): return ()
    samples_are_exact = True
    def compute_mode(self, uuid): return ComputeMode.DEFAULT
    def set_compute_mode(self, uuid, mode): pass
    def reset(self, uuid): raise CalabashError("it cannot be reset", reason=Reason.UNHEALTHY)
    def released(self): return contextlib.nullcontext()
    def wait_events(self, timeout_s): time.sleep(timeout_s); return ()
    def close(self): pass

def open_driver(options): return AcmeDriver()
"""


def _install_acme(directory: Path) -> None:
    """Install the package of another GPU vendor as pip does: a module, and an entry point that names it."""
    (directory / "acme_gpu.py").write_text(_ACME)
    info = directory / "acme_gpu-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-gpu\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[calabash.gpu_vendors]\nacme = acme_gpu:open_driver\n")


def test_a_second_vendor_is_added_by_modules_only(make_world: Callable[..., World], tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    _install_acme(packages)
    lost = tmp_path / "lost"
    world = make_world("1xA100-40GB")
    world.environment |= {"PYTHONPATH": str(packages), "ACME_LOST": str(lost)}
    assert "acme 9.9" in world.up()["driver"]
    assert sorted((d["vendor"], d["index"]) for d in world.devices()) == [("acme", 0), ("acme", 1), ("nvidia", 2)]
    _, allocation = world.running(mode="exclusive", models=["acme"])
    assert allocation["slices"][0]["device"].startswith("ACME-")
    _, other = world.running(memory_mib=1000, cores=10, models=["A100"])
    assert other["slices"][0]["device_index"] == 2
    lost.touch()
    until(lambda: [d["health"] for d in world.devices()] == ["lost", "lost", "healthy"], what="both to be lost")
    lost.unlink()
    until(lambda: {d["health"] for d in world.devices()} == {"healthy"}, what="both to come back")


def test_a_program_in_a_pid_namespace_of_its_own_is_accounted_and_reclaimed(world: World, hold: str) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare")
    if subprocess.run([unshare, "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel does not give out pid namespaces")
    script = (
        f"tail -f /dev/null | {hold} 1000 100 & first=$!; read line; kill -9 $first; wait $first; read line;"
        f" exec {hold} 1500 100"
    )
    program, _ = world.running(
        unshare, "--pid", "--fork", "--kill-child", "sh", "-c", script, memory_mib=2048, cores=10
    )
    until(lambda: program.says("held 1000"), what="the first to hold")
    used = until(
        lambda: (mib := world.allocations()[0]["slices"][0]["memory_used_mib"]) > 1400 and mib,
        what="the context inside the namespace to be seen",
    )
    assert used <= 2048
    os.write(program.stdin, b"\n")
    # The mounted /proc shows the pids of another namespace, so only the pool can detect that the first is dead.
    until(lambda: world.allocations()[0]["slices"][0]["memory_used_mib"] == 0, what="it to be reclaimed")
    os.write(program.stdin, b"\n")
    until(lambda: program.says("held 1500"), what="the second to have the room")
