"""Real API server and etcd with thousands of invented nodes, and the cost of each operation on them."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from tests.kube.api import Api, Json, RefusedError, Watch
from tests.kube.cluster import Cluster

from bench._report import ROOT
from bench._scale_objects import (
    GPU_NODES,
    GPUS,
    SLICES,
    gpu_node_status,
    node_body,
    node_name,
    pod_body,
    resource_slices,
)

WRITERS = 8
PAGE = 500
NAMESPACE = "team"
_LED = re.compile(r"\bleads\b.*\bnodes\b")
_CRDS = ROOT / "charts" / "calabash" / "crds"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Cost of an operation: CPU time of the API server and of etcd, and wall time."""

    api_s: float
    etcd_s: float
    wall_s: float


@dataclass(slots=True)
class Received:
    """Bytes and lines that watchers have received."""

    total_bytes: int = 0
    lines: int = 0
    watches: list[Watch] = field(default_factory=list)


class ScaledCluster:
    """A control plane with ``nodes`` nodes of eight cards, and all objects that belong to them.

    Args:
        pods: pods of each node, each with one slice.
        mig: offer every MIG placement in ResourceSlices.
    """

    def __init__(self, nodes: int, *, pods: int, mig: bool = False) -> None:
        self.nodes, self.pods, self._mig = nodes, pods, mig
        self._stack = ExitStack()
        controllers = ("--controllers=namespace-controller,serviceaccount-controller",)
        self.cluster = self._stack.enter_context(Cluster(controllers=controllers))
        self.api: Api = self.cluster.api
        self._threads = self._stack.enter_context(ThreadPoolExecutor(WRITERS))
        self.filled: dict[str, tuple[int, Spent]] = {}
        self._made: dict[tuple[int, int, int], str] = {}  # uids of pods

    def fill(self) -> None:
        """Create everything; ``filled`` then has the number of objects and the cost of each kind."""
        for path in ("gpunodes", "queues"):
            crd = yaml.safe_load((_CRDS / f"{path}.calabash.dev.yaml").read_text())
            self.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
            self.cluster.wait_for(partial(self._served, path), path)
        for name in ("calabash-system", NAMESPACE):
            self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        self.cluster.wait_for(lambda: self.api.exists(accounts), "the account of pods")
        numbers = range(self.nodes)
        self._create("nodes", self._node, list(numbers))
        self._create("gpunodes", self._gpu_node, list(numbers))
        slices = [one for number in numbers for one in resource_slices(number, mig=self._mig)]
        self._create("resourceslices", lambda body: self.api.create(SLICES, body), slices)
        places = [(node, index) for index in range(self.pods) for node in numbers]
        self._create("pods", self._pod, list(enumerate(places)))
        self._create("plans of pods", self._planned, list(self._made.items()))

    def _create(self, kind: str, call: Callable[[Any], object], things: Sequence[Any]) -> None:
        with self.spending() as spent:
            for _ in self._threads.map(call, things):
                pass
        self.filled[kind] = len(things), spent[0]

    def _node(self, number: int) -> None:
        self.api.create("/api/v1/nodes", node_body(number))

    def _gpu_node(self, number: int) -> None:
        head = {"apiVersion": "calabash.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": node_name(number)}}
        path = f"{GPU_NODES}/{node_name(number)}"
        self.api.patch(f"{path}?fieldManager=calabash-agent&force=true", head, "apply")
        self.report_devices(number, 1000)

    def report_devices(self, number: int, used_mib: int) -> None:
        """Report a node's devices to the API server, as its agent does."""
        body = {
            "apiVersion": "calabash.dev/v1alpha1",
            "kind": "GpuNode",
            "metadata": {"name": node_name(number)},
            "status": gpu_node_status(number, used_mib=used_mib),
        }
        path = f"{GPU_NODES}/{node_name(number)}/status?fieldManager=calabash-agent&force=true"
        self.api.patch(path, body, "apply")

    def _pod(self, what: tuple[int, tuple[int, int]]) -> None:
        number, (node, index) = what
        made = self.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod_body(number, node, index % GPUS))
        self._made[number, node, index] = made["metadata"]["uid"]

    def _planned(self, what: tuple[tuple[int, int, int], str]) -> None:
        (number, node, index), uid = what
        body = pod_body(number, node, index % GPUS, uid)["metadata"]
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{body['name']}"
        self.api.patch(path, {"metadata": {"annotations": body["annotations"]}})

    def _served(self, plural: str) -> bool:
        try:
            self.api.get(f"/apis/calabash.dev/v1alpha1/{plural}")
        except RefusedError:
            return False
        return True

    # ---- costs -----------------------------------------------------------------------------------------------------

    def cpu_s(self, program: str) -> float:
        """Return the CPU time that a program has used so far."""
        words = self._proc(program, "stat").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS

    def resident_mib(self, program: str) -> float:
        line = next(line for line in self._proc(program, "status").splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def _proc(self, program: str, what: str) -> str:
        spaces = self.cluster.namespaces
        return Path(f"/proc/{spaces.pid}/root/proc/{spaces.number(program)}/{what}").read_text()

    @contextmanager
    def spending(self) -> Iterator[list[Spent]]:
        """Measure the cost of the block; the yielded list has it at the end."""
        found: list[Spent] = []
        before = self.cpu_s("apiserver"), self.cpu_s("etcd"), time.monotonic()
        yield found
        api_s, etcd_s, wall_s = self.cpu_s("apiserver"), self.cpu_s("etcd"), time.monotonic()
        found.append(Spent(api_s=api_s - before[0], etcd_s=etcd_s - before[1], wall_s=wall_s - before[2]))

    def stored_bytes(self) -> dict[str, float]:
        """Return the size of etcd's file, and the size in etcd of the objects of each kind."""
        found: dict[str, float] = {}
        for line in self.api.text("/metrics").splitlines():
            if line.startswith(("apiserver_storage_size_bytes", "apiserver_resource_size_estimate_bytes")):
                name, value = line.rsplit(" ", 1)
                found[name] = float(value)
        return found

    def size_as_protobuf(self, path: str) -> int:
        """Return the size in bytes of a built-in object as etcd stores it."""
        return len(self._raw(path, "application/vnd.kubernetes.protobuf"))

    def size_as_json(self, path: str) -> int:
        return len(self._raw(path, "application/json"))

    def _raw(self, path: str, form: str) -> bytes:
        connection = self.api._connection()  # noqa: SLF001 - another form of answer than the plain client asks for
        try:
            headers = {"Authorization": f"Bearer {self.cluster.secrets.token('admin')}", "Accept": form}
            connection.request("GET", path, headers=headers)
            return connection.getresponse().read()
        finally:
            connection.close()

    def list_all(self, path: str) -> tuple[int, int]:
        """List a kind in pages, as a mirror does; return the number of objects and of bytes."""
        count = size = 0
        further = ""
        while True:
            answer = self._raw(f"{path}?limit={PAGE}{further}", "application/json")
            size += len(answer)
            page: Json = json.loads(answer)
            count += len(page["items"])
            token = page["metadata"].get("continue")
            if not token:
                return count, size
            further = f"&continue={token}"

    @contextmanager
    def watchers(self, path: str, count: int) -> Iterator[Received]:
        """Run ``count`` watches of a kind; yield what they receive."""
        received = Received()
        lock = threading.Lock()

        def read(watch: Watch) -> None:
            try:
                while line := watch._answer.readline():  # noqa: SLF001 - bytes, not what they say
                    with lock:
                        received.total_bytes += len(line)
                        received.lines += 1
            except (OSError, ValueError):
                return
            finally:
                watch._connection.close()  # noqa: SLF001

        version = self.api.get(f"{path}?limit=1")["metadata"]["resourceVersion"]
        received.watches = [self.api.watch(f"{path}?resourceVersion={version}") for _ in range(count)]
        threads = [threading.Thread(target=read, args=(watch,), daemon=True) for watch in received.watches]
        for thread in threads:
            thread.start()
        try:
            yield received
        finally:
            for watch in received.watches:
                watch.close()
            for thread in threads:
                thread.join(20)

    def wait_for(self, check: Callable[[], object], what: str) -> None:
        self.cluster.wait_for(check, what, timeout_s=600)

    def wait_until_quiet(self) -> None:
        """Wait until the API server is nearly idle."""
        end = time.monotonic() + 600
        while time.monotonic() < end:
            with self.spending() as spent:
                time.sleep(3.0)  # what it does is a rate
            if spent[0].api_s < 0.1 * spent[0].wall_s:
                return
        raise TimeoutError("the API server is still busy after 600 s")

    # ---- planners -------------------------------------------------------------------------------------------------

    def start_planner(self, name: str, port: int, *more: str) -> None:
        calabash = ROOT / ".venv" / "bin" / "calabash"
        words = ["serve", "planner", "--kubeconfig", str(self.cluster.kubeconfig), "--listen", f"127.0.0.1:{port}"]
        source = {"PYTHONPATH": str(ROOT / "src")}
        self.cluster.start_program(name, [str(calabash), *words, "--identity", name, *more], source)

    def leads(self, name: str) -> bool:
        """Return True if the planner has begun to lead."""
        return _LED.search(re.sub(r"\x1b\[[0-9;]*m", "", self.cluster.log(name))) is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
