"""Generator of random clusters and workloads by seed, for benchmarks, tests and examples without a trace.

The distribution of node classes, shares and device counts follows the published statistics of the openb trace, so that results
are close to those on the real trace.
"""

from __future__ import annotations

import numpy as np

from calabash.model.errors import CalabashError
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import NodeSpec
from calabash.sim.workload import TraceRequest, Workload, simple_node

# (model, devices, vCPU, host memory in GiB, number of such nodes in a thousand)
NODE_CLASSES = (
    ("G2", 8, 96, 384, 453),
    ("T4", 2, 104, 384, 319),
    ("T4", 4, 96, 384, 14),
    ("G3", 8, 128, 768, 32),
    ("V100M16", 4, 32, 244, 39),
    ("V100M32", 8, 96, 736, 25),
    ("P100", 2, 64, 256, 118),
)
# (share of requests, devices, milli of each): frequent sizes; the other requests are distributed between them
REQUEST_CLASSES = (
    (0.133, 0, 0),
    (0.132, 1, 810), (0.092, 1, 470), (0.040, 1, 320), (0.031, 1, 650), (0.017, 1, 230), (0.016, 1, 460),
    (0.009, 1, 590), (0.009, 1, 160), (0.009, 1, 550), (0.008, 1, 220), (0.006, 1, 370), (0.009, 1, 110),
    (0.480, 1, WHOLE_MILLI), (0.002, 2, WHOLE_MILLI), (0.002, 4, WHOLE_MILLI), (0.005, 8, WHOLE_MILLI),
)  # fmt: skip
_CPU_ONLY_MILLI = (8_000, 12_500, 15_400, 16_500, 32_000)
_PER_DEVICE_MILLI = (4_000, 6_000, 8_000, 11_900, 15_600)


def cluster(node_count: int, seed: int = 0) -> list[NodeSpec]:
    """Return random nodes of NODE_CLASSES. Raises CalabashError if ``node_count`` is below 1."""
    if node_count < 1:
        raise CalabashError(f"a cluster of {node_count} nodes is out of range", hint="give at least 1 node")
    weights = np.array([row[4] for row in NODE_CLASSES], float)
    picks = np.random.default_rng(seed).choice(len(NODE_CLASSES), node_count, p=weights / weights.sum())
    return [
        simple_node(name=f"node-{index:05d}", cpu_milli=vcpu * 1000, memory_mib=gib * 1024, gpu_count=gpus, model=model)
        for index, (model, gpus, vcpu, gib, _) in enumerate(NODE_CLASSES[pick] for pick in picks.tolist())
    ]


def workload(request_count: int, seed: int = 0) -> Workload:
    """Return random requests of REQUEST_CLASSES. Raises CalabashError if ``request_count`` is below 1."""
    if request_count < 1:
        raise CalabashError(f"a workload of {request_count} requests is out of range", hint="give at least 1 request")
    rng = np.random.default_rng(seed)
    weights = np.array([row[0] for row in REQUEST_CLASSES], float)
    picks = rng.choice(len(REQUEST_CLASSES), request_count, p=weights / weights.sum()).tolist()
    sizes = rng.integers(0, len(_PER_DEVICE_MILLI), request_count).tolist()
    requests = []
    for index, (pick, size) in enumerate(zip(picks, sizes, strict=True)):
        _, devices, milli = REQUEST_CLASSES[pick]
        cpu = _PER_DEVICE_MILLI[size] * devices if devices else _CPU_ONLY_MILLI[size]
        shape = Shape(
            cpu_milli=max(1000, cpu * milli // WHOLE_MILLI) if devices else cpu,
            memory_mib=max(1, cpu // 1000) * 2048,
            gpu_count=devices,
            gpu_milli=milli,
        )
        requests.append(TraceRequest(name=f"request-{index:05d}", shape=shape))
    return Workload(name=f"generated-{seed}", requests=tuple(requests))
