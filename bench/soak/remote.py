"""Cards used from another machine: a broker beside the pool, a client with a home of its own, and faults between them."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from bench.soak.actors import Actor
from bench.soak.faults import Kind, environment_of, processes, send
from bench.soak.world import OTHERS, SIM, World, until

GRACE_S = 20


class Remote(Actor):
    """Runs over TCP and TLS, several on one reservation now and then."""

    name = "remote"
    pause_s = 2.0

    def prepare(self) -> None:
        self.client = self.world.directory / "client"
        self.client.mkdir(mode=0o700)
        until(lambda: serve(self.world), every_s=1.0)
        token = self.world.directory / "remote.token"
        until(lambda: self._token(token), every_s=1.0)
        until(self._known, every_s=1.0)

    def _token(self, path: Path) -> bool:
        code, said = self.world.command(
            "remote", "server", "token", "create", "remote", "--gpus", "4", "--memory", "60GiB"
        )
        if code == 0:
            path.write_text(said)
            path.chmod(0o600)
        return code == 0

    def _known(self) -> bool:
        address = (self.world.home / "server" / "address").read_text().strip()
        token = str(self.world.directory / "remote.token")
        return self.world.command("remote", "add", address, "--token", token, CALABASH_HOME=str(self.client))[0] == 0

    def turn(self) -> None:
        amounts = ["--memory", f"{self.random.randrange(700, 3000)}MiB", "--cores", str(self.random.randrange(5, 25))]
        program = ["--seconds", self.seconds(4), "--kernel-us", "3000", "--memory-mib", "400"]
        if self.random.random() < 0.25:
            self._reserved(amounts, program)
        else:
            wait = self.random.choice(((), ("--wait", "10s")))
            self.run(
                ["--remote", *amounts, "--filter", f"model~{OTHERS}", *wait],
                program,
                tenant="remote",
                remote=str(self.client),
            )

    def _reserved(self, amounts: list[str], program: list[str]) -> None:
        home = str(self.client)
        code, said = self.world.command(
            "remote", "reserve", *amounts, "--idle", "60s", "--filter", f"model~{OTHERS}", CALABASH_HOME=home
        )
        self.log(f"reserve: {code} {said.strip()[:120]}")
        if code:
            self.world.diary.count("remote: no reservation")
            return
        lease = said.strip().splitlines()[-1].split()[0]
        for _ in range(2):
            self.run(["--remote", "--lease", lease], program, tenant="remote", remote=home)
        self.world.command("remote", "release", lease, CALABASH_HOME=home)

    def finish(self) -> None:
        """Stop the broker as an operator does."""
        until(lambda: self.world.command("remote", "server", "down", "--force")[0] == 0, every_s=1.0)


def serve(world: World) -> bool:
    """Start the broker, at the port that it had before; return True if it runs."""
    place = world.home / "server" / "address"
    listen = place.read_text().strip() if place.exists() else "127.0.0.1:0"
    code, said = world.command(
        "remote",
        "server",
        "up",
        "--listen",
        listen,
        "--sim",
        SIM,
        "--name",
        "lab01",
        "--reconnect-within",
        f"{GRACE_S}s",
    )
    if code:
        world.log.line("broker", f"did not start: {said.strip()[-200:]}")
    return code == 0


def broker(world: World) -> int:
    """Return the broker's process, or 0 if there is none."""
    home = f"CALABASH_HOME={world.home}\0".encode()
    found = [pid for pid in processes(b"\0server\0up\0", b"--foreground") if home in environment_of(pid)]
    return found[0] if found else 0


def kill_broker(world: World, chance: random.Random) -> None:
    pid = broker(world)
    if pid:
        with world.diary.fault("broker killed", f"process {pid}"):
            send(pid, signal.SIGKILL)
            until(lambda: broker(world) != pid, within_s=20)
            time.sleep(chance.choice((0.0, 1.0, 3.0)))
            if not until(lambda: serve(world), within_s=90, every_s=1.0):
                world.diary.violation("the broker starts again", "not within 90 s")


def stop_broker(world: World, chance: random.Random) -> None:
    pid = broker(world)
    if pid:
        with world.diary.fault("broker stopped", f"process {pid}"):
            send(pid, signal.SIGSTOP)
            try:
                time.sleep(chance.uniform(0.5, 3.0))
            finally:
                send(pid, signal.SIGCONT)


FAULTS = (
    Kind(name="broker killed", weight=2, hit=kill_broker),
    Kind(name="broker stopped", weight=1, hit=stop_broker),
)
