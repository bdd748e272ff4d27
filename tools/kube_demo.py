"""Run a real Kubernetes with simulated cards and the whole product on this machine, and check every limit: ``make kube-demo``.

Control plane, containerd and kubelet are the real ones, in network namespaces; only the cards are simulated. Pods are
written as users write them. Memory limits are judged by the programs in the pods and by NVML, compute limits by NVML's
figures for each process; the verdict in the last line is computed from these measurements.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pynvml
import structlog
from rich.console import Console
from rich.table import Table
from tests.kube.card_time import pod_of
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import MIB, GpuNode
from tests.kube.needs import absent
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod

from calabash.adapters.gpu.library import simulated_library_dir
from calabash.cli.demo.command import save_picture
from calabash.cli.demo.tenants import SHARE_ERROR_POINTS_MAX
from calabash.model.errors import CalabashError

CARDS = "2xA100-40GB"
LOAD = "exec load tenant 300 1000000"  # all memory that it can get, then kernels of 1 ms
HOLD = "exec sleep 1000"
SETTLE_S, MEASURED_S = 1.5, 6
CONTEXT_MIB_MAX = 600  # of a slice, for the program's own context
GANG = 3
EVENT_WIDTH_MAX = 200


@dataclass(slots=True, kw_only=True)
class Tenant:
    """A namespace with one pod, and the measurements of that pod."""

    name: str
    words: str
    limits: dict[str, str]
    memory_mib: int
    cores_percent: int
    uid: str = ""
    told_mib: int = 0
    held_mib: int = 0
    used_mib_max: int = 0
    samples: list[float] = field(default_factory=list)

    @property
    def share_percent(self) -> float:
        """Return the mean of the compute samples, in percent."""
        return sum(self.samples) / len(self.samples) if self.samples else 0.0

    def broken(self) -> list[str]:
        """Return a sentence for each limit of the tenant that did not hold."""
        found = []
        if self.told_mib != self.memory_mib:
            found.append(f"{self.name} was told of {self.told_mib} MiB instead of {self.memory_mib}")
        if not self.memory_mib - CONTEXT_MIB_MAX <= self.held_mib <= self.memory_mib:
            found.append(f"{self.name} could hold {self.held_mib} MiB of {self.memory_mib}")
        if not 0 < self.used_mib_max <= self.memory_mib:
            found.append(f"{self.name} used {self.used_mib_max} MiB of {self.memory_mib} by NVML")
        if abs(self.share_percent - self.cores_percent) > SHARE_ERROR_POINTS_MAX:
            found.append(f"{self.name} got {self.share_percent:.1f}% of the card instead of {self.cores_percent}%")
        return found


def tenants() -> list[Tenant]:
    """Return three tenants that share a card; each writes its request in the words of another system."""
    native = {"calabash.dev/gpus": "1", "calabash.dev/memory": "16Gi", "calabash.dev/cores": "50"}
    hami = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240", "nvidia.com/gpucores": "30"}
    qgpu = {"tke.cloud.tencent.com/qgpu-memory": "4", "tke.cloud.tencent.com/qgpu-core": "20"}
    return [
        Tenant(name="vision", words="Calabash", limits=native, memory_mib=16384, cores_percent=50),
        Tenant(name="speech", words="HAMi", limits=hami, memory_mib=10240, cores_percent=30),
        Tenant(name="search", words="qGPU", limits=qgpu, memory_mib=4096, cores_percent=20),
    ]


class Demo:
    """The steps of the demo. Each prints one line with its duration and may record a broken limit."""

    def __init__(self, console: Console, stack: ExitStack) -> None:
        self._console = console
        self._stack = stack
        self._tenants = tenants()
        self.broken: list[str] = []
        self.held: list[str] = []
        self.product = self._started()
        self.cluster = self.product.cluster

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        self._console.print(f"{what:<80}", end="")
        try:
            yield
        except BaseException:
            self._console.print()
            raise
        self._console.print(f"{time.monotonic() - began:6.1f} s")

    def _quote(self, text: str) -> None:
        for line in text.splitlines():
            self._console.print(f"    {line}", markup=False, soft_wrap=True)

    def _check(self, held: bool, good: str, bad: str) -> None:
        (self.held if held else self.broken).append(good if held else bad)

    # ---- the stage ------------------------------------------------------------------------------------------------

    def _started(self) -> Product:
        scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        with self._step("etcd, API server, controllers, scheduler"):
            cluster = self._stack.enter_context(Cluster(lifecycle=True, users=USERS))
        with self._step("a node: containerd, kubelet"):
            node = RealNode(cluster)
        with self._step(f"its cards, simulated: {CARDS}; our agent as their device plug-in"):
            gpu_node = GpuNode(node, scratch, gpus=CARDS)
        with self._step("admission, planner, a stock kube-scheduler that asks the planner"):
            product = self._stack.enter_context(Product(gpu_node))
        open_nvml(gpu_node.state)
        return product

    # ---- three tenants on one card --------------------------------------------------------------------------------

    def share(self) -> None:
        """Run three pods on one card and measure what each gets."""
        with self._step("three namespaces, one pod each, in the words of Calabash, HAMi and qGPU"):
            for tenant in self._tenants:
                self.product.namespace(tenant.name)
                self.product.create(tenant.name, user_pod("main", tenant.limits, LOAD))
            for tenant in self._tenants:
                self._wait_for_memory(tenant)
        with self._step(f"memory and compute of each, as NVML has it, over {MEASURED_S} s"):
            index = self._card_of_all()
            if index is not None:
                self._measure(index)
        self._quote("$ kubectl get gpunodes\n" + self.cluster.kubectl("get", "gpunodes"))

    def _wait_for_memory(self, tenant: Tenant) -> None:
        self.product.wait(tenant.name, "main", "Running")
        tenant.uid = self.product.pod(tenant.name, "main")["metadata"]["uid"]

        def said() -> list[str]:
            try:
                return self.product.log(tenant.name, "main").split()
            except RuntimeError:  # the container is being made
                return []

        told, held = self.cluster.wait_for(said, f"what {tenant.name} says of its memory", every_s=0.2)[:2]
        tenant.told_mib, tenant.held_mib = int(told) // MIB, int(held) // MIB

    def _card_of_all(self) -> int | None:
        """Return the index of the card that the tenants share, or None."""
        uids = {t.uid for t in self._tenants}

        def together() -> list[int]:
            return [
                device["index"]
                for device in self.product.gpu_node.status().get("devices", [])
                if uids <= {part["podUid"] for part in device.get("slices", [])}
            ]

        try:
            return self.cluster.wait_for(together, "one card with all three", 10)[0]
        except TimeoutError as error:
            self.broken.append(str(error))
            return None

    def _measure(self, index: int) -> None:
        card = pynvml.nvmlDeviceGetHandleByIndex(index)
        time.sleep(SETTLE_S)
        since_us = int(time.time() * 1e6)
        by_uid = {t.uid: t for t in self._tenants}
        for _ in range(MEASURED_S):
            time.sleep(1)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card):
                if tenant := by_uid.get(pod_of(process.pid)):
                    tenant.used_mib_max = max(tenant.used_mib_max, -(-(process.usedGpuMemory or 0) // MIB))
            readings = pynvml.nvmlDeviceGetProcessUtilization(card, since_us)
            for reading in readings:
                if tenant := by_uid.get(pod_of(reading.pid)):
                    tenant.samples.append(float(reading.smUtil))
            since_us = max([since_us, *(int(r.timeStamp) for r in readings)])

    # ---- a gang, and one that waits -------------------------------------------------------------------------------

    def gang(self) -> None:
        """Start a gang of three pods, all or none."""
        team = self.product.namespace("team")
        limits = {"calabash.dev/gpus": "1", "calabash.dev/memory": "8Gi", "calabash.dev/cores": "30"}
        pods = [user_pod(f"worker{i}", limits, HOLD) for i in range(GANG)]
        for pod in pods:
            pod["metadata"]["annotations"] = {"calabash.dev/gang": "train", "calabash.dev/gang-size": str(GANG)}
        with self._step(f"two of a gang of {GANG}: they wait for the third"):
            for pod in pods[:-1]:
                self.product.create(team, pod)
            told = self._told(team, pods[-2]["metadata"]["name"])
        self._quote(told)
        early = [pod for pod in ("worker0", "worker1") if "nodeName" in self.product.pod(team, pod)["spec"]]
        with self._step("the third comes, and all of them run"):
            self.product.create(team, pods[-1])
            for i in range(GANG):
                self.product.wait(team, f"worker{i}", "Running")
        self._check(not early, f"the gang of {GANG} started together", f"{' '.join(early)} of the gang began alone")

    def wait(self) -> None:
        """Check that a pod that does not fit is told why it waits."""
        late = self.product.namespace("late")
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "30000", "nvidia.com/gpucores": "80"}
        with self._step("a pod that wants more than any card has left is told why it waits"):
            self.product.create(late, user_pod("large", limits, HOLD))
            told = self._told(late, "large")
        self._quote(told)
        self._check("nodeName" not in self.product.pod(late, "large")["spec"], "", "more was given than there is")

    def _told(self, namespace: str, name: str) -> str:
        def told() -> str:
            condition = self.product.condition(namespace, name)
            said = condition.get("reason") not in (None, "SchedulingGated") and condition.get("status") == "False"
            return f"{condition['reason']}: {condition.get('message', '')}"[:EVENT_WIDTH_MAX] if said else ""

        return self.cluster.wait_for(told, f"what {name} is told", 30)

    # ---- a queue that takes back ----------------------------------------------------------------------------------

    def reclaim(self) -> None:
        """Check that a queue reclaims its guaranteed card from pods that borrowed it."""
        queue = {"apiVersion": "calabash.dev/v1alpha1", "kind": "Queue", "spec": {"deserved": 1}}
        self.product.api.create("/apis/calabash.dev/v1alpha1/queues", {**queue, "metadata": {"name": "prod"}})
        shop = self.product.namespace("shop", **{"calabash.dev/queue": "prod"})
        before = self._running()
        with self._step("queue prod is guaranteed a card: its pod gets one from pods that borrow it"):
            self.product.create(shop, user_pod("checkout", {"nvidia.com/gpu": "1"}, HOLD))
            self.product.wait(shop, "checkout", "Running")
        evicted = sorted(before - self._running())
        self._quote(f"evicted: {', '.join(evicted)}")
        self._check(bool(evicted), "queue prod took its card back", "a card was given that was not free")

    def _running(self) -> set[str]:
        found = self.product.api.get("/api/v1/pods")["items"]
        return {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            for pod in found
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    # ---- the end --------------------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Delete all pods and check that their slices are free again."""
        gpu_node = self.product.gpu_node
        with self._step("all pods are deleted, all slices come back"):
            for namespace in ("shop", "late", "team", *(t.name for t in self._tenants)):
                self.product.api.delete(f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
            try:
                self.cluster.wait_for(lambda: not gpu_node.slots(), "the last slice back", 30, every_s=0.2)
            except TimeoutError:
                self.broken.append(f"{len(gpu_node.slots())} slices were not given back")
        left_mib = sum(int(gpu_node.card(i)["used_bytes"]) for i in (0, 1)) // MIB
        self._check(left_mib == 0, "all slices back", f"{left_mib} MiB are still taken on the cards")

    def verdict(self) -> int:
        """Print the table and the verdict; return 0 if every limit held."""
        self._console.print(table(self._tenants))
        broken = [text for tenant in self._tenants for text in tenant.broken()] + self.broken
        if broken:
            self._console.print("a limit was broken: " + "; ".join(broken))
            return 1
        asked = "/".join(str(t.cores_percent) for t in self._tenants)
        got = "/".join(f"{t.share_percent:.1f}" for t in self._tenants)
        rest = "; ".join(text for text in self.held if text)
        self._console.print(
            f"every limit held: shares asked {asked}, got {got} percent; no pod above its memory; {rest}"
        )
        return 0


def table(measured: list[Tenant]) -> Table:
    """Return the table of requested amounts and of the measurements by the programs and by NVML."""
    drawn = Table(title="three pods on one card", title_justify="left")
    for heading in (
        "namespace",
        "asked in words of",
        "share asked",
        "share got",
        "memory asked",
        "could fill",
        "most used",
    ):
        drawn.add_column(heading, justify="left" if heading.startswith(("name", "asked in")) else "right")
    for t in measured:
        figures = (f"{t.memory_mib} MiB", f"{t.held_mib} MiB", f"{t.used_mib_max} MiB")
        drawn.add_row(t.name, t.words, f"{t.cores_percent}%", f"{t.share_percent:.1f}%", *figures)
    return drawn


def open_nvml(state: Path) -> None:
    """Load NVML of the simulated node into this process."""
    os.environ["CALABASH_SIM"] = str(state)
    # Loaded first by path, so that the binding's own search by name finds it.
    ctypes.CDLL(str(simulated_library_dir() / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    pynvml.nvmlInit()
    del os.environ["CALABASH_SIM"]


def play(console: Console) -> int:
    """Run all steps and return the exit code; stops everything that was started."""
    began = time.monotonic()
    with ExitStack() as stack:
        demo = Demo(console, stack)
        acts: tuple[Callable[[], None], ...] = (demo.share, demo.gang, demo.wait, demo.reclaim, demo.give_back)
        for act in acts:
            act()
        console.print(f"took {time.monotonic() - began:.0f} s")
        return demo.verdict()


def stay(console: Console) -> int:
    """Start the cluster without the steps, for use by hand until Ctrl-C."""
    with ExitStack() as stack:
        cluster = Demo(console, stack).cluster
        console.print("\nready for pods; in another terminal, as root:", soft_wrap=True)
        programs = f"{cluster.programs}:{Path(sys.executable).parent}"  # kubectl, and its plug-in beside this Python
        console.print(f"export KUBECONFIG={cluster.kubeconfig} PATH={programs}:$PATH", soft_wrap=True)
        console.print("Ctrl-C here ends it and removes everything")
        try:
            signal.pause()
        except KeyboardInterrupt:
            console.print("ended")
    return 0


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle the first Ctrl-C and ignore further ones, so that make and uv, which repeat it, do not disturb the clean-up."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def main() -> int:
    """Run the demo; return 0 if every limit held, 1 if not, 2 if no cluster can run here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stay", action="store_true", help="only make the cluster, and keep it until Ctrl-C")
    parser.add_argument("--svg", type=Path, help="save what the terminal showed")
    options = parser.parse_args()
    console = Console(record=options.svg is not None, highlight=False, width=120 if options.svg else None)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has started it with the former ignored
        signal.signal(number, interrupt)
    reason = absent(node=True)
    if reason:
        print(f"error: no Kubernetes can run here: {reason.partition('; hint:')[0]}", file=sys.stderr)
        print("hint: as root, with Go installed: tools/bootstrap --kube", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))  # of admission
    console.print("$ make kube-demo" + " STAY=1" * options.stay)
    try:
        ended = stay(console) if options.stay else play(console)
    except KeyboardInterrupt:
        console.print("interrupted: everything is ended and removed")
        return 130
    except (AssertionError, CalabashError, OSError, RuntimeError) as error:
        console.print(f"the demo failed: {error}", markup=False)
        console.print("hint: with CALABASH_KUBE_KEEP=1 the logs stay, in /tmp/calabash-kube-*")
        return 1
    if options.svg:
        save_picture(console, options.svg, "make kube-demo")
    return ended


if __name__ == "__main__":
    sys.exit(main())
