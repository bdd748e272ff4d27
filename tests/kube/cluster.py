"""A real Kubernetes for tests: etcd, API server, controller manager, scheduler, and real or fake nodes.

    with Cluster() as cluster:                        # control plane only, about four seconds
        cluster.fake_nodes(100, {"nvidia.com/gpu": "8"})
        cluster.kubectl("apply", "-f", "-", text=yaml)
        KubeClient.load(cluster.kubeconfig)           # the same file serves the test process and what runs inside
        cluster.restart("apiserver")
        cluster.start_program("planner", [python, "-m", ...])   # in the same network as the API server

Tests use the fixtures of ``tests/kube/fixtures.py``. They create a cluster themselves only if it needs special flags.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.evidence_sources import rescue
from tests.kube import components, fakes
from tests.kube.api import Api, RefusedError
from tests.kube.components import Component, Secrets
from tests.kube.namespaces import Namespaces
from tests.kube.programs import found

_SCHEDULER_PORT = 10259
T = TypeVar("T")


class Cluster:
    """A control plane in Linux namespaces of its own. Several can run at the same time; all end with the test process.

    Args:
        apiserver: further flags of the API server.
        controllers: further flags of the controller manager.
        lifecycle: True to run the node lifecycle controller, which taints nodes that stop renewing their leases.
            Without it, a node stays ready although it has neither a kubelet nor a lease, as fake nodes do.
        users: names of further users, each with its groups. Each user gets a kubeconfig.
    """

    def __init__(
        self,
        *,
        apiserver: Sequence[str] = (),
        controllers: Sequence[str] = (),
        lifecycle: bool = False,
        users: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.programs = found()
        self.namespaces = Namespaces()
        self.root = self.namespaces.root
        self._components: dict[str, Component] = {}
        self._lasting: set[str] = set()
        try:
            self._start(apiserver, controllers, lifecycle, users or {})
        except BaseException as error:
            error.add_note(self.logs())
            rescue(self, error)
            self.close()
            raise

    def _start(
        self, apiserver: Sequence[str], controllers: Sequence[str], lifecycle: bool, users: Mapping[str, Sequence[str]]
    ) -> None:
        keys = self.secrets = Secrets(self.root, self.namespaces.port)
        for name in ("admin", "controllers", "scheduler"):
            keys.add_user(name, "system:masters")
        for name in components.NODES:
            keys.add_user(f"system:node:{name}", "system:nodes")
        for name, groups in users.items():
            keys.add_user(name, *groups)
        self.kubeconfig = keys.kubeconfig("admin")
        self.begin(components.etcd(self.programs, self.root))
        if not lifecycle:  # else a new node is tainted until the lifecycle controller has seen it ready
            apiserver = ("--disable-admission-plugins=TaintNodesByCondition", *apiserver)
        self.begin(components.apiserver(self.programs, keys, self.namespaces.port, apiserver))
        self.wait_for(keys.authority.exists, "the API server's certificate")
        self.api = Api(keys.server, keys.authority, keys.token("admin"))
        self.wait_until_ready()
        self.begin(components.controllers(self.programs, keys, lifecycle=lifecycle, more=controllers))
        self.begin(components.scheduler(self.programs, keys, components.SCHEDULER, {}, _SCHEDULER_PORT))
        self.wait_for(lambda: self.api.exists("/api/v1/namespaces/default/serviceaccounts/default"), "service accounts")

    # -- programs --------------------------------------------------------------------------------------------------

    def add_scheduler(self, name: str, config: Mapping[str, Any]) -> None:
        """Add a kube-scheduler with this KubeSchedulerConfiguration (as JSON; kubeconfig and limits are filled in)."""
        port = _SCHEDULER_PORT + 1 + len(self._components)
        self.begin(components.scheduler(self.programs, self.secrets, name, config, port))

    def start_program(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None, *, beside: str | None = None
    ) -> None:
        """Start a program inside the namespaces. It can be killed and started again by its name.

        Args:
            name: name of the program.
            argv: its command line.
            env: its environment variables, in addition to those of the test process.
            beside: name of a node in whose mount namespace the program runs; None for that of the control plane.
        """
        self.begin(Component(name, tuple(argv), env or {}, beside, lasting=False))

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a component and wait for its end.

        Returns:
            The exit status; for a component that a signal ended, the negative number of the signal.
        """
        self._lasting.discard(name)
        return self.namespaces.kill(name, number)

    def start(self, name: str) -> None:
        """Start a component again with the same command line; after the API server or etcd, wait until the API is ready."""
        self.begin(self._components[name])
        if name in (components.APISERVER, components.ETCD):
            self.wait_until_ready()

    def restart(self, name: str, number: int = signal.SIGKILL) -> None:
        self.kill(name, number)
        self.start(name)

    def begin(self, component: Component) -> None:
        """Start a component, which can then be killed and restarted by its name."""
        self._components[component.name] = component
        self.namespaces.start(component.name, component.argv, component.env, beside=component.beside)
        if component.lasting:
            self._lasting.add(component.name)

    # -- what runs inside, now --------------------------------------------------------------------------------------

    def exec_inside(
        self, *argv: str, beside: str | None = None, text: str | None = None, timeout_s: float = 90, check: bool = True
    ) -> str:
        """Run a command inside the namespaces and return its output; with ``beside``, in that node's mount namespace."""
        return _run(self.namespaces.enter(argv, beside=beside), text, timeout_s, check)

    def kubectl(self, *words: str, text: str | None = None, timeout_s: float = 90, check: bool = True) -> str:
        """Run kubectl as the administrator and return its output; ``text`` is its standard input."""
        program = [str(self.programs / "kubectl"), f"--kubeconfig={self.kubeconfig}"]
        return _run([*program, *words], text, timeout_s, check)

    def listen(self, port: int) -> socket.socket:
        """Return a listening socket on the loopback interface of the cluster's network, for use in the test process.

        A test can serve a webhook on it, with ``url: https://127.0.0.1:<port>/...``, or a scheduler extender.
        """
        return self.namespaces.listen(port)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait_for(self, check: Callable[[], T], what: str, timeout_s: float = 120, every_s: float = 0.05) -> T:
        """Call ``check`` until it returns a true value, and return that value.

        Args:
            check: the condition.
            what: what is waited for, for the error message.
            timeout_s, every_s: limit of the wait and pause between two calls, in seconds.

        Raises:
            TimeoutError: the condition did not become true in time.
            RuntimeError: a component of the control plane has ended meanwhile.
        """
        now = time.monotonic()
        end, next_check = now + timeout_s, now
        while not (answer := check()):
            now = time.monotonic()
            if now > end:
                raise TimeoutError(f"{what}: not in {timeout_s:.0f} s")
            if now > next_check:
                self._see_all_alive(what)
                next_check = now + 0.5
            time.sleep(every_s)
        return answer

    def _see_all_alive(self, what: str) -> None:
        for name, status in self.namespaces.programs().items():
            if status is not None and name in self._lasting:
                text = f"waiting for {what}: {name} ended with {status}"
                raise RuntimeError(f"{text}:\n{self.log(name)[-3000:]}")

    def wait_until_ready(self) -> None:
        """Wait until the API server reports that it is ready."""
        self.wait_for(self._ready, "the API server", every_s=0.1)

    def _ready(self) -> bool:
        try:
            return self.api.text("/readyz") == "ok"
        except (OSError, RefusedError):
            return False

    # -- nodes --------------------------------------------------------------------------------------------------------

    def fake_nodes(self, count: int, allocatable: Mapping[str, str] | None = None, **more: Any) -> list[str]:
        """Create ready nodes without a kubelet and return their names. See ``fakes.fake_nodes``."""
        return fakes.fake_nodes(self.api, count, allocatable or {}, **more)

    # -- the end ------------------------------------------------------------------------------------------------------

    def log(self, name: str) -> str:
        """Return the output of a component so far."""
        path = self.root / "log" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self, lines: int = 15) -> str:
        """Return the last lines of every component's log, for a test that failed."""
        parts = []
        for path in sorted((self.root / "log").glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {path.name}", *tail]))
        return "\n".join(parts)

    def evidence(self) -> Iterable[Path]:
        """Return the files that are copied aside if a test fails: the logs of the components."""
        return [self.root / "log"]

    def close(self) -> None:
        """End all processes of the cluster, wait for them, and remove the directory."""
        self.namespaces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        rescue(self, error)
        self.close()


def _run(argv: Sequence[str], text: str | None, timeout_s: float, check: bool) -> str:
    done = subprocess.run(
        list(argv), input=text or "", capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace"
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
