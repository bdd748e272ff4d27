"""Tenant networks under load: two tenants with the same addresses, packets between their programs, balancers, and faults."""

from __future__ import annotations

import json
import os
import random
import signal
import string
import time
from contextlib import suppress

from bench.soak.actors import Actor, Talk
from bench.soak.diary import Run
from bench.soak.faults import Kind, children_with, send
from bench.soak.talker import TCP
from bench.soak.world import OTHERS, World, until

VPCS = (("red", "vision"), ("blue", "speech"))
ADDRESSES = {"p1": "10.0.1.11", "p2": "10.0.1.12", "p3": "10.0.1.13"}
VIP = "10.0.1.100"
UNSETTLING = (
    "netd killed",
    "OVN killed",
    "pool killed",
    "pool restarted",
    "pool stopped",
    "disk full",
    "tenant killed",
)
SETTLED_S = 40.0  # time from the last fault of networks until connections must work again


class Networks(Actor):
    """A server behind a balancer for each tenant, and clients that connect to both."""

    name = "networks"
    pause_s = 3.0

    def prepare(self) -> None:
        self.prefix = prefix_of(self.world)
        until(
            lambda: self._say("net", "up", "--host-count", "1", "--gateways", "0", "--prefix", self.prefix) == 0,
            every_s=1.0,
        )
        for vpc, tenant in VPCS:
            self._until("net", "vpc", "create", vpc, "--cidr", "10.0.0.0/16", "--tenant", tenant)
            self._until("net", "subnet", "create", f"{vpc}/a", "--cidr", "10.0.1.0/24")
            for port, address in ADDRESSES.items():
                self._until("net", "port", "create", f"{vpc}/a/{port}", "--ip", address)
            self._until("net", "lb", "create", f"{vpc}/web", "--vip", f"{VIP}:80", "--backends", f"p1:{TCP}")

    def turn(self) -> None:
        """Run servers of both tenants, and clients of both while the servers run."""
        servers = [self._talk(vpc, tenant, "p1", "40") for vpc, tenant in VPCS]
        until(lambda: all("ready" in self.updated(one).said or one[1].ended.is_set() for one in servers), within_s=60)
        asked = [f"{ADDRESSES['p1']}:{TCP}", f"{VIP}:80"]
        while not self.world.over.is_set() and not any(started.ended.is_set() for _, started in servers):
            port = self.random.choice(("p2", "p3"))
            clients = [self._talk(vpc, tenant, port, "12", *asked) for vpc, tenant in VPCS]
            for run, started in clients:
                self.end(run, started, within_s=30)
            self._judge([run for run, _ in clients], [run for run, started in servers if not started.ended.is_set()])
            self.world.over.wait(self.pause_s)
        for run, started in servers:
            if self.world.over.is_set() and not started.ended.is_set():
                self.world.diary.harm(run.tag, "the soak is over")
                with suppress(ProcessLookupError):
                    os.kill(run.pid, signal.SIGTERM)
            self.end(run, started, within_s=60)
        self._foreign([run for run, _ in servers])

    def _talk(self, vpc: str, tenant: str, port: str, seconds: str, *asked: str) -> Talk:
        words = ["--memory", "600MiB", "--cores", "2", "--model", OTHERS, "--port", f"{vpc}/a/{port}", "--wait", "15s"]
        return self.begin(
            words, ["--name", tenant, "--seconds", seconds, *asked], tenant=tenant, program_file="talker.py"
        )

    def _judge(self, clients: list[Run], serving: list[Run]) -> None:
        self._foreign(clients)
        names = {run.tenant for run in serving if "ready" in run.said}
        near = [f for f in self.world.diary.faults(*UNSETTLING) if f.meets(time.time() - SETTLED_S, time.time())]
        for run in clients:
            self.world.diary.count("networks: answered", int(run.said.get("answered", 0)))
            self.world.diary.count("networks: silent", int(run.said.get("silent", 0)))
            if run.said.get("silent") and run.tenant in names and not near and not run.harmed:
                self.world.diary.violation("ports and balancers answer", f"{run.tag}: {run.said}")

    def _foreign(self, runs: list[Run]) -> None:
        for run in runs:
            if run.said.get("foreign"):
                self.world.diary.violation("nothing passes between tenants", f"{run.tag} of {run.tenant}: {run.said}")

    def _say(self, *words: str) -> int:
        code, said = self.world.command(*words)
        self.log(f"{' '.join(words)}: {code} {said.strip()[:200] if code else ''}")
        return code

    def _until(self, *words: str) -> None:
        """Repeat a command until it succeeds; if the answer was lost with the pool, the repetition finds the object."""
        until(lambda: self._say(*words) == 0, every_s=1.0, within_s=300)

    def finish(self) -> None:
        for vpc, _ in VPCS:
            until(lambda vpc=vpc: self._say("net", "vpc", "delete", vpc, "--all") == 0, every_s=1.0)  # type: ignore[misc]
        until(lambda: self._say("net", "down", "--prefix", self.prefix) == 0, every_s=1.0)


def prefix_of(world: World) -> str:
    """Return the prefix of the names of the soak's namespaces, unique to one soak."""
    chance = random.Random(str(world.directory))
    return "k" + "".join(chance.choices(string.ascii_lowercase + string.digits, k=5))


def kill_controller(world: World, chance: random.Random) -> None:
    del chance
    for pid in children_with(world.pid(), b"calabash.controllers.networks"):
        with world.diary.fault("netd killed", f"process {pid}"):
            send(pid, signal.SIGKILL)
            time.sleep(1.0)


def kill_ovn(world: World, chance: random.Random) -> None:
    """Kill a process of OVN or Open vSwitch; an operator restarts the ended ones."""
    prefix = prefix_of(world)
    code, said = world.command("net", "status", "--prefix", prefix, "-o", "json")
    with suppress(ValueError, KeyError):
        running = (
            [one for one in json.loads(said)["items"] if one["pid"] and one["prefix"] == prefix] if code == 0 else []
        )
        if running:
            one = chance.choice(running)
            with world.diary.fault("OVN killed", f"{one['daemon']} on {one['on']}"):
                send(one["pid"], signal.SIGKILL)
                time.sleep(chance.uniform(0.2, 3.0))
                if not until(lambda: world.command("net", "up", "--prefix", prefix)[0] == 0, within_s=60, every_s=1.0):
                    world.diary.violation("networks are brought up again", f"after {one['daemon']} was killed")


FAULTS = (
    Kind(name="netd killed", weight=2, hit=kill_controller, root=True),
    Kind(name="OVN killed", weight=3, hit=kill_ovn, root=True),
)
