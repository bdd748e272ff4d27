"""Differential test of the table of gang owners: the pods that the real controllers create from the same objects.

The controllers are unmodified: those of Kubernetes, and those of ``controller_programs``. Each manifest of ``gangs`` with
a controller is created in a namespace of its own. The nodes are fake and have room for everything, so that controllers
that wait for earlier pods create all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.controllers import Controllers, need_controllers
from tests.kube.hollow import HollowKubelets
from tests.kube.needs import need

from calabash.kubernetes.gangs.explain import explain_file
from calabash.kubernetes.gangs.gang import Gang
from calabash.kubernetes.gangs.membership import LEVELS_MAX, entry_of, gang_owner, member_of
from calabash.kubernetes.gangs.owner import GangOwner
from calabash.kubernetes.gangs.table import table_with

MANIFESTS = Path(__file__).with_name("gangs")
TABLE = table_with()
CONTROLLERS = ("jobset", "lws", "trainer", "kuberay")
# Groups of kinds whose controllers run, and the objects that controllers create in between, by their kinds.
GROUPS = {"batch", "apps", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "ray.io", "trainer.kubeflow.org"}
PLURALS = {one.kind: one.plural for one in TABLE.values() if one.group in GROUPS}
PLURALS |= {"Pod": "pods", "TrainingRuntime": "trainingruntimes"}  # a leader of a LeaderWorkerSet owns its workers


class Manifest:
    """One file of ``gangs``: the last object forms the gang, those before are what it needs."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.text = path.read_text()
        self.objects: list[Json] = list(yaml.safe_load_all(self.text))

    @cached_property
    def gangs(self) -> tuple[Gang, ...]:
        """Return the gangs, as ``explain-gang`` computes them from the file."""
        found = explain_file(self.text, f"{self.name}.yaml", TABLE)[-1]
        assert not found.invalid, found.reason
        return found.gangs

    @property
    def expected(self) -> Counter[tuple[str, str]]:
        """Return the number of pods by role and number of the gang; "" if objects of the kind form one gang each."""
        count: Counter[tuple[str, str]] = Counter()
        entry = entry_of(TABLE, self.objects[-1])
        assert entry is not None
        for gang in self.gangs:
            for role in gang.roles:
                for copy in range(gang.copies):
                    count[role.name, str(copy) if entry.copies else ""] += role.count
        return +count

    def runs(self) -> bool:
        """Return True if a controller of the kind is real."""
        return str(self.objects[-1]["apiVersion"]).partition("/")[0] in GROUPS


CREATED = [one for one in map(Manifest, sorted(MANIFESTS.glob("*.yaml"))) if one.runs()]


class World:
    """The cluster, on which every manifest has been created in the namespace of its name."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.api = cluster, cluster.api
        self._owners: dict[str, Json] = {}

    def create(self, manifest: Manifest) -> None:
        self.api.create("/api/v1/namespaces", {"metadata": {"name": manifest.name}})
        for body in manifest.objects:
            self.create_object(manifest.name, body)

    def create_object(self, namespace: str, body: Json) -> Json:
        """Create an object and return it as the API server has it."""
        path = f"/apis/{body['apiVersion']}/namespaces/{namespace}/{PLURALS[body['kind']]}"
        return self.cluster.wait_for(partial(self._created, path, body), f"{body['kind']} in {namespace}")

    def _created(self, path: str, body: Json) -> Json:
        try:
            return self.api.create(path, body)
        except RefusedError as refused:
            if refused.status >= 500:  # a webhook of a controller that has just been started
                return {}
            raise

    def members(self, manifest: Manifest) -> list[tuple[Json, tuple[GangOwner, Json]]]:
        """Return the pods that belong to a gang owner, with its entry and manifest, when all have been created."""

        def all_created() -> list[tuple[Json, tuple[GangOwner, Json]]]:
            found = [(pod, gang_owner(TABLE, self.owners(pod))) for pod in self.pods(manifest.name)]
            members = [(pod, owner) for pod, owner in found if owner is not None]
            return members if len(members) >= manifest.expected.total() else []

        return self.cluster.wait_for(all_created, f"the pods of {manifest.name}")

    def pods(self, namespace: str) -> list[Json]:
        """Return the pods that are not being deleted."""
        found = self.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def owners(self, pod: Json) -> list[Json]:
        """Return the controllers of a pod, its own one first."""
        found: list[Json] = []
        below = pod
        while len(found) < LEVELS_MAX:
            references = below["metadata"].get("ownerReferences", [])
            reference = next((one for one in references if one.get("controller")), None)
            if reference is None:
                break
            below = self._owner(pod["metadata"]["namespace"], reference)
            found.append(below)
        return found

    def _owner(self, namespace: str, reference: Mapping[str, Any]) -> Json:
        if reference["uid"] not in self._owners:
            version = reference["apiVersion"]
            path = f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{namespace}"
            self._owners[reference["uid"]] = self.api.get(f"{path}/{PLURALS[reference['kind']]}/{reference['name']}")
        return self._owners[reference["uid"]]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    need()
    need_controllers()
    with Cluster() as cluster:
        cluster.fake_nodes(4, {"nvidia.com/gpu": "1000"})
        with HollowKubelets(cluster.api), Controllers(cluster, *CONTROLLERS):
            found = World(cluster)
            for manifest in CREATED:
                found.create(manifest)
            yield found


@pytest.mark.parametrize("manifest", CREATED, ids=lambda one: one.name)
def test_real_controller_creates_the_pods_that_the_table_counts(world: World, manifest: Manifest) -> None:
    found: Counter[tuple[str, str]] = Counter()
    for pod, (entry, owner) in world.members(manifest):
        member = member_of(entry, owner, pod)
        found[member.role, member.copy] += 1
        assert counts(member.gang) == counts(manifest.gangs[0])
        assert member.gang.minimum == manifest.gangs[0].minimum
    assert found == manifest.expected


@pytest.mark.parametrize("manifest", CREATED, ids=lambda one: one.name)
def test_owner_of_all_members_is_the_written_object_or_the_one_it_delegates_to(
    world: World, manifest: Manifest
) -> None:
    written = manifest.objects[-1]
    entry = entry_of(TABLE, written)
    assert entry is not None
    delegate = entry.delegates_to
    owners = [owner for _, (_, owner) in world.members(manifest)]
    assert {owner["kind"] for owner in owners} == {delegate.rpartition("/")[2] or written["kind"]}
    assert len({owner["metadata"]["uid"] for owner in owners}) == 1
    if not delegate:
        assert owners[0]["metadata"]["name"] == written["metadata"]["name"]


def test_pod_that_submits_a_ray_job_is_no_member(world: World) -> None:
    def submitter() -> list[Json]:
        return [one for one in world.pods("ray-job") if "batch.kubernetes.io/job-name" in one["metadata"]["labels"]]

    (pod,) = world.cluster.wait_for(submitter, "the pod that submits the job")
    assert [one["kind"] for one in world.owners(pod)] == ["Job", "RayJob"]
    assert gang_owner(TABLE, world.owners(pod)) is None


def counts(gang: Gang) -> dict[str, tuple[int, int]]:
    """Return the number of pods and the minimum of each role."""
    return {role.name: (role.count, role.minimum) for role in gang.roles}
