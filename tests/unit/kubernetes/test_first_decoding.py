"""Threads of the planner, the node agent and admission can decode their first documents at the same time."""

from __future__ import annotations

import subprocess
import sys

_AT_ONCE = """
import sys, threading
from calabash.kubernetes import pod_request as asked
from calabash.kubernetes.objects import plan
from calabash.kubernetes.claims import nvidia, parameters
from calabash.kubernetes.dialects import pod
sys.setswitchinterval(1e-6)
PLAN = (
    '{"id":"a","pod_uid":"u","node":"n","containers":'
    '[{"name":"m","mode":"vgpu","slices":[{"device":"G","memory_mib":1,"core_percent":1}]}]}'
)
REQUEST = '{"version":1,"dialect":"d","tenant":"t","containers":[{"name":"m","kind":"main","count":1}]}'
POD = b'{"metadata":{"name":"p"},"spec":{"containers":[{"name":"m"}]}}'
SLICE = {"apiVersion": parameters.API_VERSION, "kind": parameters.KIND, "policy": "fixed"}
VFIO = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig"}
CALLS = [
    lambda: plan.read_plan(PLAN),
    lambda: asked.read_request(REQUEST),
    lambda: pod.read_pod(POD),
    lambda: parameters.read_parameters(SLICE),
    lambda: nvidia.require_same(VFIO),
]
begin, done = threading.Barrier(4), []

def decode():
    for call in CALLS:
        begin.wait()
        call()
    done.append(1)

threads = [threading.Thread(target=decode) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(done) == 4, done
"""


def test_threads_that_decode_first_documents_at_the_same_time_do_not_crash() -> None:
    for _ in range(8):
        done = subprocess.run([sys.executable, "-c", _AT_ONCE], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-1000:]}"
