"""Decoding of objects in many threads that begin at the same time, as the mirrors of a starting planner do."""

from __future__ import annotations

import subprocess
import sys

_BEGIN = """
import sys, threading
from calabash.adapters.kube.http import wire
from calabash.adapters.kube.objects import core as objects, resources
sys.setswitchinterval(1e-6)
kinds = [objects.POD, objects.NODE, objects.NAMESPACE, resources.GPU_NODE, resources.QUEUE]
makers = [make for make in (wire.page_decoder, wire.object_decoder) for _ in kinds]
begin, read = threading.Barrier(2 * len(kinds)), []

def first(make, kind):
    begin.wait()
    one = '{"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}'
    body = '{"metadata": {}, "items": [' + one + ']}' if make is wire.page_decoder else one
    read.append(make(kind.type).decode(body))

threads = [threading.Thread(target=first, args=pair) for pair in zip(makers, kinds * 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(read) == 2 * len(kinds), read
"""


def test_threads_that_read_their_first_objects_at_the_same_time_do_each_other_no_harm() -> None:
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", _BEGIN], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-1000:]}"
