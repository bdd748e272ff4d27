"""Operators of the pool: changes of cards, quotas and invoices, a console, Prometheus, and jobs of the pool."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from typing import Any

from bench._console_session import ConsoleSession, LoginRefusedError, Reply, http_ask
from bench.soak.actors import Actor
from bench.soak.world import TENANTS, free_port, until
from calabash.model.errors import CalabashError

PAGES = ("devices", "workloads", "waiting", "queues", "usage", "tenants", "audit")
QUESTIONS = ("/v1/allocations", "/v1/overview")
ANSWER_S = 60.0
TARIFF = """
name: soak
currency: EUR
valid_from: 2020-01-01
prices:
  - {name: guaranteed, measure: guaranteed, price: 3600}
  - {name: borrowed, measure: borrowed, price: 3600}
"""


class Operator(Actor):
    """Changes quotas, modes and layouts; each acknowledged change must still be there, and in the audit log."""

    name = "operator"
    pause_s = 3.0

    def prepare(self) -> None:
        self.weights = {name: 1.0 for name, _, _ in TENANTS}
        self.maybe: dict[str, set[float]] = {name: set() for name, _, _ in TENANTS}
        self.acknowledged = 0

    def turn(self) -> None:
        self.random.choice((self.weigh, self.weigh, self.change_mode, self.layout, self.replicas))()

    def weigh(self) -> None:
        name = self.random.choice(TENANTS)[0]
        weight = float(self.random.randrange(1, 100))
        code, said = self.world.command("tenant", "set", name, "--weight", f"{weight:g}")
        self.log(f"weight of {name} {weight:g}: {code} {said.strip()[:120] if code else ''}")
        self.world.diary.count(f"operator: {'refused' if code else 'changed'}")
        if code:
            self.maybe[name].add(weight)  # the answer was lost with the pool: the change may have been made
        else:
            self.acknowledged += 1
            self.weights[name], self.maybe[name] = weight, set()

    def change_mode(self) -> None:
        index, mode = self.random.randrange(4), self.random.choice(("auto", "auto", "vgpu", "mig", "mps"))
        self._say("device", "mode", str(index), mode)
        self.world.over.wait(2.0)
        self._say("device", "mode", str(index), "auto")

    def layout(self) -> None:
        if (
            self._say(
                "device", "mig", "apply", self.random.choice(("0:1g.5gb*7", "3:3g.40gb,4g.40gb", "1:2g.10gb,1g.5gb*3"))
            )
            == 0
        ):
            self.world.over.wait(3.0)
            for index in (0, 1, 3):
                self._say("device", "mig", "apply", f"{index}:none")

    def replicas(self) -> None:
        self._say("device", "set", str(self.random.randrange(4)), "--replicas", self.random.choice(("2", "4", "auto")))

    def _say(self, *words: str) -> int:
        code, said = self.world.command(*words)
        self.log(f"{' '.join(words)}: {code} {said.strip()[:120] if code else ''}")
        self.world.diary.count(f"operator: {'refused' if code else 'changed'}")
        return code

    def finish(self) -> None:
        """Undo changes of modes and layouts, and check that acknowledged changes are there."""
        for index in (0, 1, 2, 3):
            until(lambda index=index: self._say("device", "mode", str(index), "auto") == 0, every_s=1.0)  # type: ignore[misc]
            until(lambda index=index: self._say("device", "mig", "apply", f"{index}:none") == 0, every_s=1.0)  # type: ignore[misc]
            self._say("device", "set", str(index), "--replicas", "auto")
        for name, weight in self.weights.items():
            told = until(lambda name=name: self.world.ask(f"/v1/tenants/{name}"))  # type: ignore[misc]
            if told is None or told["weight"] not in {weight, *self.maybe[name]}:
                self.world.diary.violation(
                    "what was acknowledged stays", f"weight of {name}: {told and told['weight']}, set {weight}"
                )
        lines: list[Any] = []
        while page := self._lines_after(int(lines[-1]["id"]) if lines else 0):
            lines += page
        logged = sum(
            line["action"] == "PUT" and "/v1/tenants/" in line["target"] and line["outcome"] < 300 for line in lines
        )
        if logged < self.acknowledged:
            self.world.diary.violation(
                "what was acknowledged is in the audit log", f"{logged} lines of {self.acknowledged} changes of quota"
            )

    def _lines_after(self, last: int) -> list[Any]:
        found: dict[str, list[Any]] = until(lambda: self.world.ask(f"/v1/audit?after={last}"), within_s=300)
        return found["items"]


class Invoices(Actor):
    """A tariff, repeated drafts of this month, and budgets."""

    name = "bills"
    pause_s = 15.0

    def prepare(self) -> None:
        path = self.world.directory / "tariff.yaml"
        path.write_text(TARIFF)
        until(lambda: self.world.command("invoice", "tariff", "apply", str(path))[0] == 0, every_s=1.0)

    def turn(self) -> None:
        code, said = self.world.command("invoice", "draft", time.strftime("%Y-%m", time.gmtime()))
        self.log(f"draft: {code} {said.strip()[:120] if code else ''}")
        self.world.diary.count(f"bills: {'refused' if code else 'drafted'}")
        self.world.command("tenant", "usage", "--by", "tenant,mode", "-o", "json")


class Console(Actor):
    """Reads pages in a session of the console, and the API with a token.

    The gateway may be unreachable for a moment. It never answers with an error of its own; it accepts a token always, and a
    session as long as the pool is not restarted.
    """

    name = "console"
    pause_s = 1.0

    def prepare(self) -> None:
        host, _, port = self.world.console.rpartition(":")
        self.address = host, int(port)
        self.token, self.started_by = "", 0
        self.session: ConsoleSession | None = None
        until(self._create_token, every_s=1.0)
        until(self._log_in, every_s=1.0)

    def turn(self) -> None:
        page = self.random.choice(PAGES + QUESTIONS)
        try:
            if page in QUESTIONS:
                self._judge(
                    page, http_ask(self.address, "GET", page, headers={"Authorization": f"Bearer {self.token}"})
                )
            elif self.session is not None or self._log_in():
                self._read_page(f"/{page}?format=json")
        except (OSError, http.client.HTTPException) as error:
            self.world.diary.count("console: nobody there")
            self.log(f"{page}: {error!r}")

    def _read_page(self, path: str) -> None:
        assert self.session is not None
        reply = self.session.ask("GET", path)
        if reply.status == 401 and self.world.pid() != self.started_by:  # a session ends with a restart of the pool
            self.world.diary.count("console: session ended with the pool")
            self.session = None
            return
        self._judge(path, reply)

    def _judge(self, path: str, reply: Reply) -> None:
        self.world.diary.count("console: answered" if reply.status == 200 else f"console: {reply.status}")
        if reply.status == 500 or reply.status in (401, 403):
            self.world.diary.violation("the console answers", f"{path}: {reply.status} {reply.content[:500]!r}")
        if reply.status == 200:
            json.loads(reply.content)

    def _create_token(self) -> bool:
        code, said = self.world.command("user", "token", "create", "--note", "soak")
        self.token = said.strip() if code == 0 else ""
        return bool(self.token)

    def _log_in(self) -> bool:
        self.started_by = self.world.pid()
        try:
            code = self.world.client.post("/v1/tokens", {"login": True})["secret"]
            self.session = ConsoleSession.begun(self.address, code)
        except (CalabashError, LoginRefusedError, OSError, http.client.HTTPException) as error:
            self.log(f"not logged in: {error}")
            return False
        return True


class Prometheus(Actor):
    """Scrapes the exporter, and restarts it if it is not running."""

    name = "prometheus"
    pause_s = 3.0

    def prepare(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        words = [sys.executable, "-m", "calabash.cli.main", "serve", "exporter", "--listen", self.address, "--open"]
        with (self.world.scratch / "exporter.out").open("wb") as sink:
            self.process = subprocess.Popen(words, env=self.world.environment(), stdout=sink, stderr=sink)

    def turn(self) -> None:
        try:
            with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=ANSWER_S) as answer:
                text = answer.read().decode()
        except OSError as error:
            self.world.diary.count("prometheus: nobody there")
            self.log(f"{error}")
            return
        self.world.diary.count("prometheus: scraped")
        if "calabash_" not in text:
            self.world.diary.violation("metrics are told", text[:300])
        if self.process.poll() is not None:
            self.world.diary.violation("the exporter lives", f"it ended with {self.process.returncode}")

    def finish(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        if self.process.poll() is None:
            self.world.diary.violation("the exporter ends", "20 s after SIGTERM it had not")
            self.process.kill()
            self.process.wait()


class Jobs(Actor):
    """Commands that the pool runs for an account."""

    name = "jobs"
    pause_s = 4.0

    def turn(self) -> None:
        tenant = self.tenant()
        user = self.world.user_of(tenant)
        if not user:
            return
        tag = f"jobs-{self.world.number()}"
        command = [
            self.world.machine.interpreter,
            str(self.world.directory / "program.py"),
            "--tag",
            tag,
            "--seconds",
            self.seconds(3),
        ]
        words = [
            "job",
            "start",
            "--memory",
            "1GiB",
            "--cores",
            "10",
            "--model",
            "A100",
            "--wait",
            "20s",
            "--directory",
            "/tmp",
            "--",
        ]
        code, said = self.world.command(*words, *command, user=user)
        self.log(f"{tag} as {user}: {code} {said.strip()[:120]}")
        self.world.diary.count(f"jobs: {'refused' if code else 'started'}")
        if code:
            return
        name = said.split()[0]
        if not until(lambda: self._over(name), within_s=120, every_s=1.0):
            self.world.diary.violation("jobs end", f"{name} ({tag}) is not over after two minutes")

    def _over(self, name: str) -> bool:
        code, said = self.world.command("job", "show", name, "-o", "json")
        with suppress(ValueError, KeyError):
            return code == 0 and json.loads(said)["items"][0]["state"] not in ("waiting", "running")
        return False


def operators() -> tuple[type[Actor], ...]:
    return (Operator, Invoices, Console, Prometheus, Jobs)
