"""Limits of containers under churn: every start of every container has what its plan says, whatever fails meanwhile.

Two parts, separate in every figure. **driven**: the agent's own process on a real API server, behind a kubelet that this
benchmark drives (``_driven``): the same gRPC, checkpoint, pod-resources and CDI files, programs in control groups and mounts
of their own, but no containerd; so thousands of starts take minutes. **real node**: a real kubelet and containerd.

In both, pods of many shapes come and go (init containers, sidecars, several containers and devices, restarts, pods of one
name again and again, pods deleted by force while their program runs), device IDs are used again all the time, and the agent is
killed and the kubelet restarted on the way. Each program reports what CUDA and NVML show it and what it may allocate.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.kube.cluster import Cluster
from tests.kube.gpu_node import GpuNode
from tests.kube.needs import absent
from tests.kube.node import RealNode

from bench._driven_node import driven_node
from bench._real_starts import RealStarts
from bench._report import Report, run
from bench._starts import GPUS, Tally, sees
from bench._starts_left import Left, wait_until_nothing_is_left


def judge(report: Report, part: str, tally: Tally, left: Left, took_s: float) -> None:
    """Report the figures of a part; print wrong limits and lost starts."""
    lost = tally.lost()
    for text in [*tally.wrong[:10], *lost[:10]]:
        print(f"! {text}", flush=True)
    report.add(f"{part}: wrong limits", len(tally.wrong), "starts", at_most=0)
    report.add(f"{part}: lost", len(lost), "starts", at_most=0)
    report.add(f"{part}: leaked specs", left.specs, "files", at_most=0)
    report.add(f"{part}: leaked slots", left.slots, "slots", at_most=0)
    held = f"{left.slices} slices told, {left.used_bytes:,} bytes of the cards used"
    report.add(f"{part}: held by nobody", left.slices + left.used_bytes, "", at_most=0, detail=held)
    report.add(f"{part}: until nothing was left of the last pod", took_s, "s")


def measure_driven(report: Report, cluster: Cluster, starts: int, *, rounds: int) -> None:
    """Measure so many starts, with every fault ``rounds`` times."""
    with driven_node(cluster, workers=6, seed=1) as node:
        began = time.monotonic()
        node.run(starts, node.faults(rounds))
        took_s = time.monotonic() - began
        left, left_s = wait_until_nothing_is_left(node.left)
        detail = f"{took_s:.0f} s; {rounds} times each: agent killed, kubelet restarted, checkpoint not known"
        report.add("driven: container starts", node.tally.starts, "starts", at_least=starts, detail=detail)
        judge(report, "driven", node.tally, left, left_s)
        report.add("driven: tokens that had been another pod's", node.kubelet.reused, "tokens")
        report.add("driven: starts asked again", node.again, "times", detail="refused, or the agent was away")
        report.add("driven: pods not admitted, the agent being away", node.refused, "pods")
        report.add("driven: pods deleted by force while they ran", node.by_force, "pods")


def measure_real(report: Report, starts: int, limit_s: float) -> None:
    """Measure a real node."""
    settings = {
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
    }
    with Cluster(lifecycle=True) as cluster, tempfile.TemporaryDirectory() as scratch:
        node = RealNode(cluster, kubelet_settings=settings)
        gpu_node = GpuNode(node, Path(scratch), gpus=GPUS, programs_inside=[sees()])
        real = RealStarts(gpu_node, workers=12, seed=2)
        began = time.monotonic()
        real.run(starts, limit_s, real.faults())
        took_s = time.monotonic() - began
        left, left_s = wait_until_nothing_is_left(real.left)
        detail = f"as many as {took_s:.0f} s allowed; agent killed 4 times, kubelet twice, a load of one core meanwhile"
        report.add("real node: container starts", real.tally.starts, "starts", detail=detail)
        judge(report, "real node", real.tally, left, left_s)
        report.add("real node: pods not admitted, the agent being away", real.refused, "pods", at_most=1)
        report.add("real node: starts broken off, the kubelet being killed", real.broken_off, "starts")


def measure(report: Report) -> None:
    """Measure both parts; the short form is the driven one alone."""
    missing = absent(node=not report.quick)
    if missing:
        print(f"no real Kubernetes here: {missing}")
        return
    with Cluster() as cluster:
        measure_driven(report, cluster, 300 if report.quick else 10_000, rounds=1 if report.quick else 10)
    if report.quick:
        report.fact("real node", "not in the short form")
    else:
        measure_real(report, int(os.environ.get("BENCH_REAL_STARTS", "1000")), 600)


if __name__ == "__main__":
    run("kube_starts", "Right limits over ten thousand starts of containers", measure)
