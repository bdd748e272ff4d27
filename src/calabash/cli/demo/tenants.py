"""Tenants of the demo: requested amounts, measured use, and the comparison of both."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from calabash.model.units import MIB

SHARE_ERROR_POINTS_MAX = 3.0
SAMPLED_FRACTION_MIN = 0.8  # of the driver's answers; a program without more samples has no measured share
NVML_ROUNDING_MIB = 2  # what NVML may add to the memory of a process on a real card
HELD_FRACTION_MIN = 0.8  # of the memory limit, which a program can hold besides its context and its kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Amounts of one card that a tenant requests."""

    tenant: str
    cores_percent: int
    memory_fraction: float


REQUESTS = (
    Request(tenant="vision", cores_percent=50, memory_fraction=0.40),
    Request(tenant="speech", cores_percent=30, memory_fraction=0.25),
    Request(tenant="search", cores_percent=20, memory_fraction=0.10),
)


@dataclass(slots=True, kw_only=True)
class TenantRun:
    """A tenant's program that runs on a slice, and what the driver reports of it.

    Args:
        memory_mib: limit of memory.
        process: the program; its standard output is a pipe.
        rounding_mib: what the driver may add to the memory of a process.
    """

    name: str
    cores_percent: int
    memory_mib: int
    process: subprocess.Popen[bytes]
    used_mib: int = 0
    used_mib_max: int = 0
    rounding_mib: int = 0
    _answers: int = 0
    _shares: list[float] = field(default_factory=list)

    @property
    def running(self) -> bool:
        """True until the program has ended."""
        return self.process.poll() is None

    @property
    def share_percent(self) -> float:
        """Mean share of compute over the samples, in percent; 0 without a sample."""
        return sum(self._shares) / len(self._shares) if self._shares else 0.0

    @property
    def is_sampled(self) -> bool:
        """True if the driver had a sample of the program in nearly all answers.

        A driver that attributes its periods to one of the programs on a card has none in many, and its samples are no shares.
        """
        return len(self._shares) >= SAMPLED_FRACTION_MIN * self._answers

    def observe(self, used_bytes: Mapping[int, int], shares: Mapping[int, float]) -> None:
        """Add an observation.

        Args:
            used_bytes: memory of the card that each process holds, by process ID.
            shares: new samples of the processes' shares of compute, in percent; empty if the driver has no new ones.
        """
        self.used_mib = -(-used_bytes.get(self.process.pid, 0) // MIB)
        self.used_mib_max = max(self.used_mib_max, self.used_mib)
        if shares and self.running:
            self._answers += 1
            if self.process.pid in shares:
                self._shares.append(shares[self.process.pid])

    def broken_limits(self, *, by_samples: bool = True) -> list[str]:
        """Return a sentence for each limit that did not hold, after the program has ended.

        Args:
            by_samples: the driver's samples are shares; if not, shares are not checked.
        """
        output = self.process.stdout.read() if self.process.stdout else b""
        if self.process.returncode:
            return [f"{self.name} ended with {self.process.returncode}"]
        broken = self._broken_memory(json.loads(output.splitlines()[-1]))
        return [*broken, *self._broken_share()] if by_samples else broken

    def _broken_memory(self, said: Mapping[str, Any]) -> list[str]:
        """Return the broken limits of memory; ``said`` is the line that the program printed."""
        held_mib, total_mib, broken = said["memory_held_bytes"] / MIB, said["memory_total_bytes"] / MIB, []
        if self.used_mib_max > self.memory_mib + self.rounding_mib:
            broken.append(f"{self.name} used {self.used_mib_max} MiB of {self.memory_mib}")
        if total_mib != self.memory_mib:
            broken.append(f"{self.name} was told {total_mib:.0f} MiB instead of {self.memory_mib}")
        if not HELD_FRACTION_MIN * self.memory_mib <= held_mib <= self.memory_mib:
            broken.append(f"{self.name} could hold {held_mib:.0f} MiB of {self.memory_mib}")
        return broken

    def _broken_share(self) -> list[str]:
        if not self._shares:
            return [f"NVML reported no share of {self.name}"]
        if abs(self.share_percent - self.cores_percent) > SHARE_ERROR_POINTS_MAX:
            return [f"{self.name} got {self.share_percent:.1f}% of the card instead of {self.cores_percent}%"]
        return []
