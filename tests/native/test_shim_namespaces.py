"""Tests of the shim in a container: the slot at its fixed path, processes in a PID namespace of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.native.shim_world import GIB, MIB, OUT_OF_MEMORY, SUCCESS, Slot, World

from calabash.adapters.host.processes import InnerPid, Process, in_other_namespaces


def namespaces_are_permitted() -> bool:
    return subprocess.run(["unshare", "-rmpf", "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not namespaces_are_permitted(), reason="this machine permits no user namespaces")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path)


def in_container(slot: Slot, *command: str) -> list[str]:
    """Return a command that runs as in a container, with the slot mounted at /run/calabash/slot."""
    script = f"mount -t tmpfs none /run && mkdir -p /run/calabash/slot && mount --bind {slot.path} /run/calabash/slot"
    return ["unshare", "-rm", "sh", "-c", f'{script} && exec env LD_PRELOAD="$SHIM" "$@"', "sh", *command]


def test_fixed_path_wins_over_whatever_the_environment_says(world: World) -> None:
    real, forged = world.slot("real", cap=GIB), world.slot("forged", cap=8 * GIB)
    command = in_container(real, *real.tenant_command("alloc", 2 * GIB))
    shim = real.environment()["LD_PRELOAD"]
    assert forged.run(*command, SHIM=shim, LD_PRELOAD="") == str(OUT_OF_MEMORY)
    assert real.usage.device(0).denied_count == 1
    assert forged.procs() == []


def test_damaged_slot_at_the_fixed_path_is_not_replaced_by_the_environments(world: World) -> None:
    real, forged = world.slot("real", cap=GIB), world.slot("forged", cap=8 * GIB)
    (real.path / "limits").unlink()
    command = in_container(real, *real.tenant_command("init"))
    assert forged.run(*command, SHIM=forged.environment()["LD_PRELOAD"], LD_PRELOAD="") == "800"


def test_process_of_another_pid_namespace_is_not_taken_for_dead(world: World) -> None:
    slot = world.slot(cap=GIB)
    inner = slot.start("unshare", "-rpf", "--mount-proc", *slot.tenant_command("hold", 600 * MIB))
    assert inner.stdout is not None
    assert inner.stdout.readline() == "ready\n"
    (proc,) = slot.procs()
    assert proc.pid == 1
    assert proc.pid_namespace != Path("/proc/self/ns/pid").stat().st_ino
    assert slot.tenant("alloc", 600 * MIB) == str(OUT_OF_MEMORY)
    assert slot.tenant("alloc", 300 * MIB) == str(SUCCESS)
    # unshare itself waits outside of the namespace; the holder is its only child.
    (child,) = Path(f"/proc/{inner.pid}/task/{inner.pid}/children").read_text().split()
    name = InnerPid(namespace=proc.pid_namespace, pid=1)
    assert in_other_namespaces()[name] == Process(pid=int(child), start_time=proc.start_time)
    os.kill(int(child), signal.SIGKILL)
    inner.communicate(timeout=60)
    assert name not in in_other_namespaces()


def test_preload_file_of_a_container_applies_in_any_environment(world: World) -> None:
    """No variable names the shim or the slot, as with a container runtime, and clearing all variables changes nothing."""
    slot = world.slot(cap=GIB)
    shim = slot.environment()["LD_PRELOAD"]
    script = (
        "mount -t tmpfs none /run && mkdir -p /run/calabash/slot /run/etc/upper /run/etc/work"
        f" && mount --bind {slot.path} /run/calabash/slot"
        " && mount -t overlay none -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc"
        f" && echo {shim} > /etc/ld.so.preload"
        ' && exec env -i CALABASH_SIM="$CALABASH_SIM" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" "$@"'
    )
    for size, answer in ((2 * GIB, OUT_OF_MEMORY), (GIB // 2, SUCCESS)):
        command = ["unshare", "-rm", "sh", "-c", script, "sh", *slot.tenant_command("alloc", size)]
        assert slot.run(*command, LD_PRELOAD="", CALABASH_SLOT="") == str(answer)
