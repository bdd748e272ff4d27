"""Gangs as people write them, on a real cluster: with room for all members they run, with room for one less none does.

Each manifest of ``gangs`` is created twice, in two namespaces. The API server confines the pods of a namespace to a node
of their own (admission plugin PodNodeSelector), whose number of devices is the room. All run at the same time. API
server, the controllers of ``controllers.py`` and of Kubernetes, admission, planner and kube-scheduler are real and
unmodified; ``made_pods.py`` creates the pods of the other kinds. The nodes are fake.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.kube.cluster import Cluster
from tests.kube.controllers import Controllers, need_controllers
from tests.kube.hollow import HollowKubelets
from tests.kube.made_pods import DEFINITIONS, made_pods
from tests.kube.needs import need
from tests.kube.planned import SYSTEM, Planned, crd, devices
from tests.kube.product import PLANNER, USERS, start_admission
from tests.kube.test_gang_owners import served
from tests.kube.test_gang_owners_created import CONTROLLERS, MANIFESTS, PLURALS, Manifest, World

from calabash.kubernetes.gangs.explain import amounts_or_reason
from calabash.kubernetes.gangs.gang import Gang, Role
from calabash.kubernetes.objects.names import GPUS

PREFIX = "gangs"
ROOM = "example.com/room"
WRITTEN = [Manifest(path) for path in sorted(MANIFESTS.glob("*.yaml"))]


def amounts(manifest: Manifest, role: Role) -> int:
    """Return the devices of a pod of a role."""
    found, reason = amounts_or_reason(role)
    assert found is not None, f"{manifest.name}: {reason}"
    return found.devices


def needed(manifest: Manifest, gang: Gang) -> int:
    """Return the devices of the members without which the gang does not start; the last ones count as the cheapest."""
    least = sum(amounts(manifest, role) * role.minimum for role in gang.roles)
    spare = sum(role.minimum for role in gang.roles) - gang.minimum
    cheapest = min(amounts(manifest, role) for role in gang.roles if amounts(manifest, role))
    return least - max(0, spare) * cheapest


def started(manifest: Manifest, gang: Gang, room: int) -> int:
    """Return the number of pods that run if there are ``room`` devices, fewer than the gang needs.

    None does, except those of earlier steps of a gang whose controller creates the last pods when the first ones run.
    """
    if not gang.in_steps:
        return 0
    running = 0
    for step in range(gang.steps):
        roles = [role for role in gang.roles if role.step == step]
        room -= sum(amounts(manifest, role) * role.count for role in roles)
        if room < 0:
            break
        running += sum(role.count for role in roles)
    return running


class Rooms:
    """The planned cluster, with a node for each namespace."""

    def __init__(self, planned: Planned, world: World) -> None:
        self.planned, self.world = planned, world
        self.cluster, self.api = planned.cluster, planned.api

    def create(self, manifest: Manifest, namespace: str, room: int) -> None:
        """Create the objects of a manifest in a namespace with a node that has ``room`` devices."""
        (node,) = self.cluster.fake_nodes(
            1, {GPUS: str(room * 64)}, prefix=f"{PREFIX}-{namespace}", labels=lambda _: {ROOM: namespace}
        )
        path = "/apis/calabash.dev/v1alpha1/gpunodes"
        self.api.create(path, {"apiVersion": "calabash.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": node}})
        self.api.patch(f"{path}/{node}/status", {"status": {"devices": devices(room)}})
        confined = {"scheduler.alpha.kubernetes.io/node-selector": f"{ROOM}={namespace}"}
        self.api.create("/api/v1/namespaces", {"metadata": {"name": namespace, "annotations": confined}})
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        self.cluster.wait_for(partial(self.api.exists, account), "the service account of a namespace")
        for body in manifest.objects:
            created = self.world.create_object(namespace, body)
        if not manifest.runs():
            for api, made in made_pods(created):
                self.api.create(f"/{api}/namespaces/{namespace}/{'pods' if api == 'api/v1' else 'jobs'}", made)

    def messages(self, namespace: str) -> dict[str, str]:
        """Return why each pod without a node waits; only those of which it is known."""
        found = {}
        for name, pod in self.planned.pods(namespace).items():
            told = [one for one in pod["status"].get("conditions", []) if one["type"] == "PodScheduled"]
            if "nodeName" not in pod["spec"] and told:
                found[name] = str(told[0].get("message", ""))
        return found

    def why_waiting(self, namespace: str, pod: str) -> str:
        """Return what ``kubectl calabash why`` prints about a pod."""
        program = str(Path(sys.executable).with_name("kubectl-calabash"))
        environment = os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)}
        words = [program, "why", pod, "-n", namespace]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def rooms() -> Iterator[Rooms]:
    need()
    need_controllers()
    with Cluster(users=USERS, apiserver=["--enable-admission-plugins=PodNodeSelector"]) as cluster:
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
        options = {"--kubeconfig": str(cluster.secrets.kubeconfig(PLANNER)), "--identity": "only"}
        with Controllers(cluster, *CONTROLLERS):
            world = World(cluster)
            for (group, version, kind), plural in DEFINITIONS.items():
                made = crd(plural, kind, group=group, version=version, scope="Namespaced")
                if kind == "MPIJob":
                    first = made["spec"]["versions"][0]
                    made["spec"]["versions"].append({**first, "name": "v2beta1", "storage": False})
                cluster.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
                PLURALS[kind] = plural
                cluster.wait_for(partial(served, cluster, f"/apis/{group}/{version}/{plural}"), f"kind {kind}")
            admission = start_admission(cluster)
            try:
                cluster.wait_for(admission.ready, "the admission server")
                with (
                    Planned(cluster, 0, 0, prefix=PREFIX, planner=options) as planned,
                    HollowKubelets(cluster.api, PREFIX),
                ):
                    found = Rooms(planned, world)
                    with ThreadPoolExecutor(
                        2
                    ) as several:  # more would only keep the API server from answering admission
                        list(several.map(partial(create_both, found), WRITTEN))
                    yield found
            finally:
                admission.stop()


def create_both(rooms: Rooms, manifest: Manifest) -> None:
    for gang in manifest.gangs[:1]:
        whole = sum(amounts(manifest, role) * role.count for role in gang.roles) * gang.copies
        rooms.create(manifest, f"{manifest.name}-fits", whole)
        rooms.create(manifest, f"{manifest.name}-short", needed(manifest, gang) - 1)


@pytest.mark.parametrize("manifest", WRITTEN, ids=lambda one: one.name)
def test_gang_with_room_for_all_members_runs(rooms: Rooms, manifest: Manifest) -> None:
    namespace, total = f"{manifest.name}-fits", manifest.expected.total()
    rooms.planned.wait_bound(namespace, total)


@pytest.mark.parametrize("manifest", WRITTEN, ids=lambda one: one.name)
def test_gang_without_room_for_the_last_member_does_not_start_and_says_what_is_missing(
    rooms: Rooms, manifest: Manifest
) -> None:
    namespace, gang = f"{manifest.name}-short", manifest.gangs[0]
    running = started(manifest, gang, needed(manifest, gang) - 1)

    def told() -> list[str]:
        """Return the pods that say how many members fit, when all have been told why they wait."""
        found = {name: text for name, text in rooms.messages(namespace).items() if "member" in text}
        complete = len(found) >= waiting and len(rooms.planned.bound(namespace)) == running
        return [name for name, text in found.items() if "members fit" in text] if complete else []

    waiting = gang.waits_for(gang.steps - 1 if running else 0)
    found = rooms.cluster.wait_for(told, f"{waiting} pods of {namespace} to be told why they wait")
    said = rooms.why_waiting(namespace, min(found))
    assert "members fit" in said, said
    assert len(rooms.planned.bound(namespace)) == running
