"""Tests of the identity of usage senders: agents of nodes, over trusted TLS, and the accounts of their records."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.kubernetes.usage.usage_world import (
    AGENT,
    NOW_S,
    SYSTEM,
    ReviewingKube,
    cluster,
    granted,
    interval,
    reviewed,
)

from calabash.adapters.kube import UnreadableObject
from calabash.adapters.kube.objects.core import CONFIG_MAP, NAMESPACE, POD
from calabash.adapters.store import open_store
from calabash.api.collected import UsageBatch, UsageEntry
from calabash.kubernetes.node_plugin.reports.usage_sender import UsageSending, UsageServer
from calabash.kubernetes.serving_certificates.authority import make_authority
from calabash.kubernetes.usage.attribution import Attribution, tenant_of
from calabash.kubernetes.usage.node_identity import REMEMBERED_S, NodeIdentity
from calabash.kubernetes.usage.program import AUTHORITY, AUTHORITY_KEY, UsageProgram
from calabash.model.errors import CalabashError, Reason
from calabash_testing.api_server.client import MemoryKube


@pytest.mark.parametrize(
    "status",
    [
        reviewed("n1", user="system:serviceaccount:team:calabash-agent"),
        reviewed("n1", user="system:node:n1"),
        reviewed("n1", audience="https://kubernetes.default.svc"),
        reviewed(),
        reviewed("n1", "n2"),
    ],
)
def test_a_token_is_refused_that_is_not_of_an_agents_pod_for_this_purpose(status: object) -> None:
    kube = ReviewingKube()
    kube.reviews["t"] = status  # type: ignore[assignment]
    with pytest.raises(CalabashError) as caught:
        NodeIdentity(kube, AGENT).node_of("Bearer t")
    assert caught.value.reason is Reason.NOT_AUTHENTICATED
    assert "Bearer t" not in str(caught.value)


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer ", "Basic bm9kZQ==", "Bearer " + "x" * 20_000, "Bearer ä"])
def test_what_is_no_token_is_refused_without_a_question(shown: str) -> None:
    kube = ReviewingKube()
    with pytest.raises(CalabashError):
        NodeIdentity(kube, AGENT).node_of(shown)
    assert kube.asked == 0


def test_a_token_is_asked_about_again_when_the_answer_is_old() -> None:
    kube, now = ReviewingKube(), [0.0]
    kube.reviews["t"] = reviewed("n1")
    identity = NodeIdentity(kube, AGENT, now_s=lambda: now[0])
    assert [identity.node_of("Bearer t") for _ in range(3)] == ["n1"] * 3
    assert kube.asked == 1
    now[0] = REMEMBERED_S
    del kube.reviews["t"]
    with pytest.raises(CalabashError):
        identity.node_of("Bearer t")


@pytest.mark.parametrize(
    ("queue", "parents", "account"),
    [
        ("vision", {"vision": ""}, ("vision", "default")),
        ("vision-train", {"vision-train": "vision", "vision": ""}, ("vision", "vision-train")),
        ("c", {"c": "b", "b": "a"}, ("a", "b")),
        ("gone", {}, ("gone", "default")),
        ("x", {"x": "y", "y": "x"}, ("y", "x")),
    ],
)
def test_a_tenant_is_the_topmost_queue_and_a_project_the_next(
    queue: str, parents: dict[str, str], account: tuple[str, str]
) -> None:
    assert tenant_of(queue, parents) == account


@pytest.fixture
def served(tmp_path: Path) -> Iterator[UsageServer]:
    kube = cluster(("p0", "n1"))
    kube.create(NAMESPACE, {"metadata": {"name": SYSTEM}})
    store = open_store(f"sqlite:///{tmp_path / 'server.db'}")
    program = UsageProgram(kube, store, namespace=SYSTEM, host="127.0.0.1", names=("localhost",), refresh_s=0.05)
    program.start()
    until = time.monotonic() + 60
    while (published := kube.get(CONFIG_MAP, AUTHORITY, SYSTEM)) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    (tmp_path / "ca.crt").write_text(published.data[AUTHORITY_KEY])
    (tmp_path / "token").write_text("node:n1\n")
    yield UsageServer(url=f"https://localhost:{program.port}", authority=tmp_path / "ca.crt", token=tmp_path / "token")
    program.stop()
    assert program.collection.state().seen_at_s.keys() <= {"n1"}
    store.close()


def test_an_agent_sends_over_tls_and_lets_go_of_what_was_taken(served: UsageServer, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'agent.db'}")
    record = granted("n1", 5, "0f8fad5b-d9cb-469f-a165-708677289505", at_s=NOW_S - 600)
    store.grant(record)
    store.add_usage([interval(record, NOW_S - 600, NOW_S - 540, 0)])
    sending = UsageSending.to(served, store.outbox)
    assert sending.step()
    assert not sending.step()
    assert store.outbox.waiting() == 0
    store.close()


def test_a_node_is_told_in_the_servers_words_why_it_is_refused(served: UsageServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another")
    with pytest.raises(CalabashError, match="is not one of system:serviceaccount:calabash-system:calabash-agent"):
        served.post(UsageBatch(epoch="0" * 32, after=0, entries=()))


def test_a_server_that_another_has_signed_is_not_sent_anything(served: UsageServer, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(make_authority(datetime.datetime.now(datetime.UTC), 30).certificate)
    with pytest.raises(CalabashError, match="certificate verify failed") as caught:
        served.post(UsageBatch(epoch="0" * 32, after=0, entries=()))
    assert caught.value.reason is Reason.API_DOWN


def test_use_of_a_pod_that_cannot_be_read_is_attributed_by_its_namespace() -> None:
    """The batch is accepted; if it counted as an outage of the API server, the node would send it again for ever."""

    class Kube(MemoryKube):
        def get(self, kind: Any, name: str, namespace: str = "") -> Any:
            if kind is POD:
                raise UnreadableObject(f"pod {namespace}/{name} cannot be read")
            return super().get(kind, name, namespace)

    kube = Kube()
    kube.create(NAMESPACE, {"metadata": {"name": "team", "labels": {"calabash.dev/queue": "train"}}})
    entry = UsageEntry(
        number=1, allocation="x-main", namespace="team", pod="p", queue="default", device="GPU-0", device_model="A100",
        mode="vgpu", preemptible=False, from_s=1.0, to_s=2.0, memory_mib=1, core_percent=1, allocated_gpu_s=0.1,
        used_gpu_s=0.1, idle_s=0.0, memory_mib_s=0.1,
    )  # fmt: skip
    account = Attribution(kube, lambda queue: (queue, "own")).account_of("node", entry)
    assert (account.tenant, account.queue) == ("train", "train")
    assert "is believed" in account.doubt
