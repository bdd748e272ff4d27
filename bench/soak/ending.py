"""Judges of the end: when no actor makes requests any more, all records are compared, and nothing may be left behind."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.soak import accounts, endings
from bench.soak.diary import Run
from bench.soak.faults import processes
from bench.soak.judging import Judges
from bench.soak.world import World, until
from calabash.adapters.host.cgroups.groups import find_hierarchy
from calabash.node.membership.protocol import group_name

SETTLE_S = 120.0
ROUNDING_EUR = 0.5  # each line of an invoice is rounded to a cent


class Ending:
    """Checks that run one after the other, after all actors have ended."""

    def __init__(self, world: World, judges: Judges) -> None:
        self.world, self.judges = world, judges

    def judge(self) -> None:
        self.settle()
        records = self.world.client.rows("/v1/allocations?ended=1")
        told, rows = endings.reported_grants(records), self.rows()
        self.found("programs begin only after their grant is reported", *endings.begun_unreported(records))
        self.runs(records, told, rows)
        self.sums(rows)
        self.audit()
        self.restart(records)
        self.leave()

    def found(self, promise: str, *texts: str) -> None:
        self.judges.found(promise, list(texts))

    def settle(self) -> None:
        """Check that all slices are released by themselves, and that all cards are healthy."""

        def settled() -> bool:
            listed, devices = self.world.ask("/v1/allocations"), self.world.ask("/v1/devices")
            return (
                listed is not None
                and devices is not None
                and not listed["items"]
                and all(
                    d["health"] == "healthy" and not d["allocations"] and not d["strangers"] for d in devices["items"]
                )
            )

        if not until(settled, within_s=SETTLE_S, every_s=0.5):
            listed, devices = self.world.ask("/v1/allocations") or {}, self.world.ask("/v1/devices") or {}
            left = [
                (a["id"], a["command"][-1:], a["state"], a["pids"], a["explanation"]) for a in listed.get("items", ())
            ]
            unhealthy = [
                (d["index"], d["health"], d["cause"], d["strangers"])
                for d in devices.get("items", ())
                if d["health"] != "healthy" or d["strangers"]
            ]
            self.found("everything comes back", f"after {SETTLE_S:g} s: held {left}, cards {unhealthy}")

    def rows(self) -> list[dict[str, Any]]:
        """Return all usage intervals of the journal."""
        with closing(sqlite3.connect(f"file:{self.world.home / 'pool.db'}?mode=ro", uri=True)) as journal:
            journal.row_factory = sqlite3.Row
            return [dict(row) for row in journal.execute("SELECT * FROM usage")]

    def runs(self, records: list[Any], told: list[Any], rows: list[dict[str, Any]]) -> None:
        """Check that each run has ended as its user was told, once, and is accounted for its time.

        ``told`` are the grants that were reported to a user.
        """
        runs, faults = self.world.diary.runs(), self.world.diary.faults()
        tagged = {word: record for record in told for word in record["command"] if "-" in word}
        # A run that waits asks again if the pool ends before it has answered. An allocation that the pool had granted by then
        # is taken back by the next pool, or released by the run itself if its process was a member already.
        entered = [record for record in told if record["started_at"] and record["reason"] != "released"]
        doubled = Counter(run.tag for run in runs for record in entered if run.tag in record["command"])
        remote = {
            run.tag for run in runs if run.remote
        }  # a request that was lost on the way to its broker is made again
        twice = {tag: count for tag, count in doubled.items() if count > 1 and tag not in remote}
        self.found("each run is granted once", *(f"{tag} {count} times" for tag, count in twice.items()))
        slices = accounts.by_slice(rows)
        self.found("use is a chain of intervals", *accounts.broken_chains(slices))
        for run in runs:
            record = tagged.get(run.tag) or _reserved(run, told)
            if wrong := endings.unexplained(run, record, faults):
                self.found("runs end as their users are told", f"{run.tag} {wrong}")
            if run.began and record is None and not run.remote:
                self.found("nothing is lost", f"{run.tag} ran, and the journal does not know it")
            if run.began and record is not None and run.code is not None and not run.remote:
                self.found("use is accounted once", *accounts.misjudged(run, record, slices, faults))
        known = {(record["id"], part["device"]) for record in records for part in record["slices"]}
        self.found(
            "use is accounted once",
            *(f"use of {name}, which nobody had" for name, device in slices if (name, device) not in known),
        )
        held = [record["id"] for record in records if record["state"] != "released" or not record["ended_at"]]
        self.found("what ended is closed in the journal", *held)

    def sums(self, rows: list[dict[str, Any]]) -> None:
        """Check that the ledger's sums are those of the intervals."""
        now = time.time() + 60
        used = self.world.client.get(f"/v1/usage?by=tenant&from={now - 86400:.0f}&to={now:.0f}")
        told = {item["tenant"]: item["gpu_hours"] * 3600 for item in used["items"]}
        summed: Counter[str] = Counter()
        for row in rows:
            summed[row["tenant"]] += row["allocated_gpu_s"]
        for tenant in told.keys() | summed.keys():
            if abs(told.get(tenant, 0.0) - summed[tenant]) > 0.01 + 1e-6 * summed[tenant]:
                self.found(
                    "the ledger is the use",
                    f"{tenant}: {told.get(tenant, 0.0):.3f} s told, {summed[tenant]:.3f} s in intervals",
                )

        self.invoices(summed)

    def invoices(self, summed: Counter[str]) -> None:
        """Check the drafts of invoices. A GPU second costs one euro (``operators.TARIFF``): euros must equal the seconds."""
        code, said = self.world.command("invoice", "draft", time.strftime("%Y-%m", time.gmtime()), "-o", "json")
        if code:
            self.found("bills are the use", said.strip())
            return
        billed = {draft["tenant"]: float(draft["net"]) for draft in json.loads(said)["items"]}
        for tenant in billed.keys() | summed.keys():
            if abs(billed.get(tenant, 0.0) - summed[tenant]) > ROUNDING_EUR:
                told = f"{tenant}: {billed.get(tenant, 0.0):.2f} EUR for {summed[tenant]:.3f} GPU seconds"
                self.found("bills are the use", told)

    def audit(self) -> None:
        code, said = self.world.command("audit", "verify")
        if code:
            self.found("the audit log is whole", said.strip())

    def restart(self, records: list[Any]) -> None:
        """Check that a restarted pool reports the same."""
        paths = ("tenants", "queues", "quota", "users", "tokens", "tariffs")
        before = {path: self.kept(path) for path in paths}
        self.world.end_pool(signal.SIGTERM)
        self.world.up()
        for path, items in before.items():
            if self.kept(path) != items:
                self.found("a restart changes nothing", path)
        tokens = self.world.client.get("/v1/tokens")["items"]
        left = [one["id"] for one in tokens if one["kind"] == "session" and one["state"] == "valid"]
        self.found("a restart ends sessions of the console", *left)
        again = self.world.client.rows("/v1/allocations?ended=1")
        if again != records:
            changed = [a["id"] for a, b in zip(again, records, strict=False) if a != b]
            self.found(
                "a restart changes nothing",
                f"ended allocations: {len(records)}, then {len(again)}; changed {changed[:5]}",
            )

    def kept(self, path: str) -> list[Any]:
        """Return the objects that a restart keeps, without login codes and sessions of the console."""
        found: list[Any] = self.world.client.get(f"/v1/{path}")["items"]
        return [one for one in found if one.get("kind") not in ("login", "session")]

    def leave(self) -> None:
        """Stop the pool and check that nothing of it stays."""
        code, said = self.world.command("down", "--force")
        if code:
            self.found("the pool ends", said.strip())
        home = str(self.world.home)
        until(lambda: not processes(home.encode()), within_s=30)
        self.found("nothing is left", *(f"process {pid}: {_line(pid)}" for pid in processes(home.encode())))
        slots = (
            [path.name for path in (self.world.home / "alloc").iterdir()]
            if (self.world.home / "alloc").is_dir()
            else []
        )
        self.found("nothing is left", *(f"slot {name}" for name in slots))
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        self.found("nothing is left", *(f"mount {m}" for m in mounts if m.startswith(home + "/")))
        hierarchy = find_hierarchy()
        group = (
            hierarchy.directory / group_name(self.world.home)
            if hierarchy is not None and self.world.machine.root
            else None
        )
        if group is not None and group.is_dir():
            self.found("nothing is left", *(f"control group {path.name}" for path in group.iterdir() if path.is_dir()))
        names = (
            subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
            if self.world.machine.root
            else ""
        )
        self.found(
            "nothing is left", *(f"namespace {n}" for n in names.split() if n.startswith(group_name(self.world.home)))
        )
        node = self.world.node()
        self.found(
            "nothing is left", *(f"{d.alloc_bytes} bytes on device {d.index}" for d in node.devices if d.alloc_bytes)
        )


def _reserved(run: Run, records: list[Any]) -> Any:
    """Return the allocation of the reservation that a remote run used, or None."""
    lease = run.words[run.words.index("--lease") + 1] if "--lease" in run.words else ""
    return next((r for r in records if lease and r["command"][1:2] == [lease[:8]]), None)


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "ended"
