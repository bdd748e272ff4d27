"""Tests of an API server that answers 429, then 500: components retry at a bounded rate and recover by themselves.

The components are planner, admission and agent. Each reaches the API server through a proxy of its own, which refuses
every request for a while and breaks all watches. Meanwhile pods are created by a client that does not use a proxy.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Self

import pytest
from tests.kube.cluster import Cluster
from tests.kube.faulty_proxy import FaultyProxy
from tests.kube.gpu_node import GpuNode
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.product import USERS, Product, user_pod

from calabash.kubernetes.objects.names import PLAN

SPACE = "refused"
STATUS_PORT = 7071
PHASE_S = 12.0  # a leader gives up 10 s after its last renewal
SHARE = {"calabash.dev/gpus": "1", "calabash.dev/memory": "1Gi", "calabash.dev/cores": "10"}
PORTS = {"planner": 7501, "admission": 0, "agent": 7502}
REFUSED_PER_S_MAX = {"planner": 30, "admission": 10, "agent": 10}


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Product, dict[str, FaultyProxy]]]:
    need(node=True)
    with Cluster(lifecycle=True, users=USERS) as cluster:
        made = {name: FaultyProxy(cluster, name, port) for name, port in PORTS.items()}

        def by(name: str, kubeconfig: Path) -> Path:
            return made[name].kubeconfig(kubeconfig)

        words = [f"--kubeconfig={by('agent', cluster.kubeconfig)}"]
        gpu_node = GpuNode(RealNode(cluster), tmp_path_factory.mktemp("refused"), words=words)
        with Product(gpu_node, by=by, planner_words=("--status", f"127.0.0.1:{STATUS_PORT}")) as product:
            product.namespace(SPACE)
            yield product, made
        for one in made.values():
            one.close()


class Plans:
    """Thread that polls the pods of a namespace until the context ends.

    ``plans`` has the different plans that were seen on each pod, by the name of the pod.
    """

    def __init__(self, product: Product) -> None:
        self._product = product
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.plans: dict[str, set[str]] = defaultdict(set)

    def _poll(self) -> None:
        while not self._ended.wait(0.1):
            for pod in self._product.api.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]:
                if plan := pod["metadata"].get("annotations", {}).get(PLAN):
                    self.plans[pod["metadata"]["name"]].add(plan)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)


def readyz(product: Product) -> str:
    """Return the status and the text of the planner's answer to its readiness probe."""
    with product.cluster.namespaces.connect(STATUS_PORT) as line:
        line.settimeout(10)
        line.sendall(b"GET /readyz HTTP/1.1\r\nHost: planner\r\nConnection: close\r\n\r\n")
        text = b""
        while part := line.recv(65536):
            text += part
    head, _, body = text.decode().partition("\r\n\r\n")
    return f"{head.split()[1]} {body}"


def test_everything_goes_on_after_the_api_server_has_refused_all_requests(
    proxies: tuple[Product, dict[str, FaultyProxy]],
) -> None:
    product, made = proxies
    product.create(SPACE, user_pod("before", SHARE, "exec sleep 1000"))
    product.wait(SPACE, "before", "Running")
    assert readyz(product) == "200 ok"
    names = [f"p{number}" for number in range(6)]
    with Plans(product) as plans:
        for status, created in (
            (HTTPStatus.TOO_MANY_REQUESTS, names[:3]),
            (HTTPStatus.INTERNAL_SERVER_ERROR, names[3:]),
        ):
            for one in made.values():
                one.refused.clear()
                one.refuse(status)
            for name in created:
                product.create(SPACE, user_pod(name, SHARE, "exec sleep 1000"))
            time.sleep(PHASE_S)  # the API server refuses for this long
            said = readyz(product)
            assert said.startswith("503"), said
            assert "whether any planner leads is not known" in said
            for name, one in made.items():
                print(
                    f"{status.value}: {name} was refused {len(one.refused)} times, at most {one.refused_per_s()} a second"
                )
                print(f"    {one.most_refused()}")
                assert one.refused_per_s() <= REFUSED_PER_S_MAX[name], one.most_refused()
        assert all(product.pod(SPACE, name)["status"]["phase"] == "Pending" for name in names)
        for one in made.values():
            one.pass_on()
        began = time.monotonic()
        for name in names:
            product.wait(SPACE, name, "Running", timeout_s=30)
        print(f"{len(names)} pods run {time.monotonic() - began:.1f} s after the API server answered again")
        assert readyz(product) == "200 ok"
        product.create(SPACE, user_pod("after", SHARE, "exec sleep 1000"))
        product.wait(SPACE, "after", "Running", timeout_s=15)
    assert {name: len(found) for name, found in plans.plans.items()} == dict.fromkeys(("before", *names, "after"), 1)
    assert product.pod(SPACE, "before")["status"]["phase"] == "Running"
    assert len(product.gpu_node.slots()) == len(names) + 2
