"""Lab whose programs have no driver: each has a worker in its slot, on the same machine, behind a ring of shared memory."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

from bench._lab import NATIVE, Lab, Tenant
from calabash.adapters.host.processes import children_of
from calabash.model.request import ComputePolicy

WAIT_S = 60.0


class WorkerLab(Lab):
    """A lab whose slots have a host of workers each, under the same library and the same arbiter.

    The ``pid`` of a tenant is that of its worker, because that process is in the card's accounts.
    """

    def __init__(self, *, gpus: str = "A100-40GB") -> None:
        super().__init__(gpus=gpus)
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}

    def slot(
        self,
        name: str,
        *,
        core_percent: int = 100,
        policy: ComputePolicy | None = ComputePolicy.FIXED,
        memory_limit_bytes: int = 0,
        spill_bytes: int = 0,
        priority: int = 0,
    ) -> Path:
        """Create a slot on the first card, and start its host of workers."""
        made = super().slot(
            name,
            core_percent=core_percent,
            policy=policy,
            memory_limit_bytes=memory_limit_bytes,
            spill_bytes=spill_bytes,
            priority=priority,
        )
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._socket(name)))
            listener.listen(64)
            host = subprocess.Popen(
                [NATIVE / "remote" / "calabash-worker", "--listen", str(listener.fileno())],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                env=super().environment(name),
            )
        self._hosts[name] = host
        self._stack.callback(self._end, name)
        return made

    def drop_slot(self, name: str) -> None:
        """Remove a slot and its host."""
        self._end(name)
        self._socket(name).unlink(missing_ok=True)
        super().drop_slot(name)

    def environment(self, slot: str | None) -> dict[str, str]:
        """Return the environment of a program: the address of its worker, without slot and card."""
        if slot is None:
            return super().environment(None)
        own = {"LD_LIBRARY_PATH": str(NATIVE / "remote"), "CALABASH_REMOTE": f"unix:{self._socket(slot)}"}
        return {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | own

    def load(self, slot: str | None, *arguments: object) -> Tenant:
        """Start ``gpuload`` and wait until it has made its context."""
        if slot is None:
            return super().load(None, *arguments)
        before = set(children_of(self._hosts[slot].pid))
        tenant = super().load(slot, *arguments)
        end = time.monotonic() + WAIT_S
        while not (made := set(children_of(self._hosts[slot].pid)) - before):
            if time.monotonic() > end:
                raise RuntimeError(f"a program of slot {slot} has no worker")
            time.sleep(0.01)
        (tenant.pid,) = made
        return tenant

    def _socket(self, slot: str) -> Path:
        return self.home / f"{slot}.sock"

    def _end(self, slot: str) -> None:
        host = self._hosts.pop(slot, None)
        if host is not None:
            host.terminate()
            host.wait(timeout=WAIT_S)
