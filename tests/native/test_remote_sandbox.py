"""Tests of the worker's sandbox: every call that leads out of it fails, and what a driver needs works."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.compiled import ROOT, compiled

ABSENT = {"clone3", "io_uring_setup", "openat2", "newest call"}
FORBIDDEN = ABSENT | {
    *("execve", "execveat", "fork", "ptrace", "process_vm_readv", "process_vm_writev", "kill", "tgkill", "pidfd_getfd"),
    *("setuid", "unshare", "setns", "namespace", "mount", "pivot_root", "chroot", "keyctl", "bpf", "perf_event_open"),
    *("init_module", "userfaultfd", "socket inet", "socket unix", "socketpair", "connect", "accept"),
    *("open to create", "open to empty", "open nameless", "mkdir", "unlink", "rename", "link", "symlink", "chmod"),
    "truncate",
}
ALLOWED = {
    *("may open to read", "may open a device", "may start threads", "may map memory", "may share memory"),
    *("may signal itself", "may ask who lives", "dumpable", "cores"),
}


@pytest.fixture(scope="module")
def probe() -> Path:
    sources = [Path(__file__).parent / "sandbox_probe.c", ROOT / "native/remote/worker/sandbox.c"]
    flags = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT / 'native'}"]
    return compiled("sandbox_probe", [*flags, *sources])


@pytest.fixture
def outcome(probe: Path, tmp_path: Path) -> dict[str, int]:
    """Return the error of each attempt, 0 for success; attempts run as root if the tests do, so only the filter refuses."""
    present = tmp_path / "present"
    present.write_text("as it was")
    with subprocess.Popen(["sleep", "600"]) as unrelated_process:
        try:
            done = subprocess.run(
                [probe, present, tmp_path / "made", str(unrelated_process.pid)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert unrelated_process.poll() is None
        finally:
            unrelated_process.kill()
    assert done.returncode == 0, done.stderr
    assert present.read_text() == "as it was"
    assert os.listdir(tmp_path) == ["present"]
    return {name: int(error) for name, error in (line.rsplit(" ", 1) for line in done.stdout.splitlines())}


def test_every_way_out_of_a_worker_is_shut_and_what_a_driver_needs_is_open(outcome: dict[str, int]) -> None:
    assert outcome.keys() == FORBIDDEN | ALLOWED
    assert {name: outcome[name] for name in ABSENT} == dict.fromkeys(ABSENT, errno.ENOSYS)
    shut = FORBIDDEN - ABSENT
    assert {name: outcome[name] for name in shut} == dict.fromkeys(shut, errno.EPERM)
    assert {name: outcome[name] for name in ALLOWED} == dict.fromkeys(ALLOWED, 0)


def test_calls_by_the_numbers_of_another_machine_end_the_worker() -> None:
    """The filter knows the numbers of one machine only; those of 32-bit programs would mean other calls."""
    if os.uname().machine != "x86_64":
        pytest.skip("only x86_64 has calls of a second machine")
    source = ROOT / "build/tests/other_machine.c"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(
        '#include "remote/worker/sandbox.h"\n'
        "int main(void) { long got; if (!cb_sandbox_enter()) return 1;\n"
        '__asm__ volatile("int $0x80" : "=a"(got) : "a"(20) : "memory"); return got > 0 ? 0 : 3; }\n'
    )
    program = compiled(
        "other_machine", ["gcc", f"-I{ROOT / 'native'}", source, ROOT / "native/remote/worker/sandbox.c"]
    )
    done = subprocess.run([program], capture_output=True, check=False)
    assert done.returncode == -signal.SIGSYS
