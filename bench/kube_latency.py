"""Additional start time of a container with a slice against a plain one on a real node, by phases.

A real Kubernetes with one real node (containerd, kubelet) and simulated cards. Plain pods through the cluster's own
kube-scheduler and pods with a slice through admission, planner, the product's kube-scheduler and agent take turns, one at a
time, at random moments and in random order, from the same image. They have no volumes, for kubelets wait for those in steps of
a tenth of a second. Each prints a line at once; its time is that of its log, by the runtime's clock. The times that the API
server shows, a second coarse because the kubelet polls its containers once a second, are reported too.

The goal is the ratio of a pod with a slice to the plain one next to it in time.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.kube.api import Api, Json
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import GpuNode
from tests.kube.needs import absent
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod

from bench._report import Report, run
from calabash.kubernetes.objects.names import PLAN

NAMESPACE = "latency"
PLAIN = {"cpu": "1"}  # without CPU shares, containers start only when no other process needs the processor
SLICE = {**PLAIN, "calabash.dev/gpus": "1", "calabash.dev/memory": "1Gi", "calabash.dev/cores": "20"}
SCRIPT = "echo up; exec sleep 1000"
WARM = 2
OF_PLAIN = 1.25  # goal: time to a slice's first line, of a plain pod's


@dataclass(slots=True)
class Times:
    """Times of events of one pod by this machine's clock; "" is the request to create it."""

    at_s: dict[str, float] = field(default_factory=dict)

    def between_ms(self, first: str, last: str) -> float:
        return (self.at_s[last] - self.at_s[first]) * 1000


class Seen:
    """Watch of a namespace's pods that records when each was planned, bound and reported as running."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.pods: dict[str, Times] = {}
        self.news = threading.Condition()
        self._watch = api.watch(f"/api/v1/namespaces/{namespace}/pods")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for event in self._watch:
            now_s = time.time()
            if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                with self.news:
                    times = self.pods.setdefault(event["object"]["metadata"]["name"], Times())
                    for what in _seen_of(event["object"]):
                        times.at_s.setdefault(what, now_s)
                    if event["type"] == "DELETED":
                        times.at_s["gone"] = now_s
                    self.news.notify_all()

    def wait(self, pod: str, what: str) -> Times:
        """Wait until the event ``what`` was seen of the pod."""
        with self.news:
            if not self.news.wait_for(lambda: what in self.pods.get(pod, Times()).at_s, 60):
                raise TimeoutError(f"pod {pod} is not {what} in 60 s")
            return self.pods[pod]

    def close(self) -> None:
        self._watch.close()
        self._thread.join(10)


def _seen_of(pod: Json) -> Iterable[str]:
    if PLAN in pod["metadata"].get("annotations", {}):
        yield "planned"
    if "nodeName" in pod["spec"]:
        yield "bound"
    if pod["status"].get("phase") == "Running":
        yield "running"


def printed_s(logs: Path, pod: str) -> float:
    """Return the time when a pod's container printed its first line, by the runtime's clock; 0 if it has not."""
    for log in logs.glob(f"{NAMESPACE}_{pod}_*/main/0.log"):
        stamp, space, _ = log.read_text().partition(" ")
        if space:
            return datetime.fromisoformat(stamp).timestamp()
    return 0.0


def created_s(product: Product, pod: str) -> float:
    """Return the time when the runtime made a pod's container, by its own record."""
    cluster, node = product.cluster, product.gpu_node.node
    container = product.pod(NAMESPACE, pod)["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    asked = (str(cluster.programs / "ctr"), "-a", str(node.socket), "-n", "k8s.io", "containers", "info", container)
    record = json.loads(cluster.exec_inside(*asked, beside=node.name))
    return datetime.fromisoformat(record["CreatedAt"]).timestamp()


def once(product: Product, seen: Seen, name: str, limits: dict[str, str]) -> Times:
    """Create one pod, wait for its start and delete it; return its times."""
    node = product.gpu_node.node
    pod = user_pod(name, limits, SCRIPT, automountServiceAccountToken=False)
    asked_s = time.time()
    product.create(NAMESPACE, pod)
    made_s = time.time()
    times = seen.wait(name, "running")
    logs = node.outside("/var/log/pods")
    times.at_s |= {"asked": asked_s, "made": made_s}
    times.at_s["created"] = created_s(product, name)
    times.at_s["printed"] = product.cluster.wait_for(lambda: printed_s(logs, name), f"the first line of {name}")
    if limits is SLICE:  # the kubelet has written down what Allocate answered
        admitted = node.outside("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
        times.at_s["admitted"] = admitted.stat().st_mtime
    product.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 0})
    seen.wait(name, "gone")
    return times


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def percentile_99(values: Iterable[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(list(values), n=100, method="inclusive")[98]


def report_figures(report: Report, plain: list[Times], sliced: list[Times]) -> None:
    """Report the figures."""
    how = f"{len(sliced)} of each in turn"
    for what, end in (("first line printed", "printed"), ("Running in the API", "running")):
        ours, theirs = ([t.between_ms("asked", end) for t in times] for times in (sliced, plain))
        goal = OF_PLAIN if end == "printed" else None
        report.add(f"create to {what}, plain, p50", median(theirs), "ms", detail=how)
        report.add(f"create to {what}, plain, p99", percentile_99(theirs), "ms")
        report.add(f"create to {what}, slice, p50", median(ours), "ms")
        report.add(f"create to {what}, slice, p99", percentile_99(ours), "ms")
        added = [mine - its for mine, its in zip(ours, theirs, strict=True)]
        report.add(f"create to {what}, added, p50", median(added), "ms", detail="of neighbours in time")
        report.add_ratio(f"create to {what}, slice of plain", ours, theirs, "ms", of="plain", at_most=goal)
        report.add(f"create to {what}, added, p99", percentile_99(ours) - percentile_99(theirs), "ms")
    for what, first, last, of_plain in (
        ("admission, in the request that makes the pod", "asked", "made", "asked"),
        ("planner, until the gate is off", "made", "planned", ""),
        ("kube-scheduler, filter and bind", "planned", "bound", "made"),
        ("kubelet, sandbox and PreStart", "bound", "created", "bound"),
        ("of that, until the kubelet has admitted it", "bound", "admitted", ""),
        ("runtime, container made to first line", "created", "printed", "created"),
    ):
        same = [t.between_ms(of_plain, last) for t in plain] if of_plain else []
        detail = f"plain {median(same):.1f} ms" if same else ""
        report.add(f"slice, {what}, p50", median(t.between_ms(first, last) for t in sliced), "ms", detail=detail)


def measure(report: Report) -> None:
    """Measure all."""
    missing = absent(node=True)
    if missing:
        print(f"no real Kubernetes here: {missing}")
        return
    count = 8 if report.quick else 60
    when = random.Random(1)
    plain: list[Times] = []
    sliced: list[Times] = []
    with Cluster(lifecycle=True, users=USERS) as cluster, tempfile.TemporaryDirectory() as scratch:
        gpu_node = GpuNode(RealNode(cluster), Path(scratch))
        with Product(gpu_node) as product:
            product.namespace(NAMESPACE)
            seen = Seen(cluster.api, NAMESPACE)
            try:
                for number in range(-WARM, count):
                    turns: list[tuple[str, dict[str, str], list[Times]]]
                    turns = [("plain", PLAIN, plain), ("slice", SLICE, sliced)]
                    for kind, limits, times in when.sample(turns, 2):
                        time.sleep(when.uniform(0, 1))  # so that starts do not fall in step with the kubelet's polling
                        found = once(product, seen, f"{kind}-{number + WARM}", limits)
                        if number >= 0:
                            times.append(found)
            finally:
                seen.close()
    report_figures(report, plain, sliced)


if __name__ == "__main__":
    run("kube_latency", "What a slice adds to the start of a pod", measure)
