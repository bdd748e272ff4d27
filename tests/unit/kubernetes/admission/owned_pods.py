"""Owners in an API server in memory, the pods that their controllers create, and reviews of these pods."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from tests.unit.kubernetes.admission.applied import applied

from calabash.adapters.kube import Kind
from calabash.kubernetes.admission.owners import OwnerObject, OwnerReader
from calabash.kubernetes.admission.scope import ClaimsAsked, NamespaceTerms, OwnerAnswer, OwnerResult
from calabash.kubernetes.admission.service import AdmissionService, ReviewResult
from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.dialects.pod import AskingOwner
from calabash.kubernetes.gangs.resolve import gangs_of
from calabash.kubernetes.gangs.table import read_kinds
from calabash.model.errors import CalabashError
from calabash.transport.http1 import HttpQuestion
from calabash_testing.api_server.client import MemoryKube

Json = dict[str, Any]
MANIFESTS = Path(__file__).parents[1] / "gangs" / "manifests"
WORKING = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


def manifest(name: str) -> Json:
    """Return a manifest of the tests of ``gangs``."""
    found: Json = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())
    return found


class Reviews:
    """An admission service on an API server in memory.

    Attributes:
        kube: the API server.
        reads: controllers of pods for which the service has read an answer.
        results: results that the service has reported.
        warnings: warnings of the last review.
    """

    def __init__(self, settings: AdmissionSettings | None = None) -> None:
        self.settings = settings or AdmissionSettings()
        self.kube = MemoryKube()
        self.reads: list[str] = []
        self.results: list[OwnerResult] = []
        self.warnings: list[str] = []
        self.service = AdmissionService(self.settings, self, self)
        self._reader = OwnerReader(self.kube, self.settings.gang_table, levels=self.settings.topology_levels)
        self._kinds = read_kinds(self.settings.gang_table)

    def cached_terms(self, namespace: str) -> NamespaceTerms:
        return NamespaceTerms(name=namespace)

    read_terms = cached_terms

    def read_claims(self, *_: object) -> ClaimsAsked:
        return {}

    def read_owner(self, namespace: str, owner: AskingOwner) -> OwnerAnswer:
        self.reads.append(owner.name)
        return self._reader.read(namespace, owner, 2.0)

    def owner_answered(self, result: OwnerResult) -> None:
        self.results.append(result)

    def denied(self, namespace: str, name: str, error: CalabashError) -> None:
        pass

    def answered(self, path: str, result: ReviewResult, seconds: float) -> None:
        pass

    def create(self, tree: Json, owner: Json | None = None, namespace: str = "team") -> Json:
        """Create an object of a kind that is read; return a reference to it as the controller of others."""
        tree = copy.deepcopy(tree)
        group, _, _ = tree["apiVersion"].rpartition("/")
        kind = self._kinds[f"{group}/{tree['kind']}"]
        if owner is not None:
            tree.setdefault("metadata", {})["ownerReferences"] = [owner]
        typed = Kind(
            api_version=tree["apiVersion"], name=kind.kind, plural=kind.plural, namespaced=True, type=OwnerObject
        )
        made = self.kube.create(typed, tree, namespace)
        return {
            "apiVersion": tree["apiVersion"],
            "kind": kind.kind,
            "name": made.metadata.name,
            "uid": made.metadata.uid,
            "controller": True,
        }

    async def review(self, pod: Json, path: str = "/mutate", namespace: str = "team") -> Json:
        """Return the pod as the webhook changes it. Fails if it is denied."""
        response = await self.answer(pod, path, namespace)
        assert response["allowed"], response["status"]
        self.warnings = response.get("warnings", [])
        patch = (
            msgspec.json.decode(msgspec.json.decode(f'"{response["patch"]}"', type=bytes))
            if "patch" in response
            else []
        )
        changed: Json = applied(pod, patch)
        return changed

    async def answer(self, pod: Json, path: str = "/mutate", namespace: str = "team") -> Json:
        """Return the response of the webhook."""
        request = {"uid": "1", "operation": "CREATE", "namespace": namespace, "object": pod}
        body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        reply = await self.service.handle(HttpQuestion(method="POST", path=path, body=body))
        response: Json = msgspec.json.decode(reply.body)["response"]
        return response

    def admit(self, pods: Sequence[Json], namespace: str = "team") -> list[Json]:
        """Return the pods as both webhooks admit them, reviewed at the same time."""

        async def both(pod: Json) -> Json:
            changed = await self.review(pod, namespace=namespace)
            again = await self.review(changed, namespace=namespace)
            assert again == changed
            return await self.review(changed, "/validate", namespace=namespace)

        async def all_pods() -> list[Json]:
            return list(await asyncio.gather(*(both(pod) for pod in pods)))

        return asyncio.run(all_pods())


def owned_pod(
    name: str, owner: Json, marks: Json | None = None, spec: Json | None = None, said: Json | None = None
) -> Json:
    """Return a pod.

    Args:
        marks: labels, which are also annotations, as the table looks for both.
        spec: the specification; one device if None.
        said: further annotations.
    """
    labels = dict(marks or {})
    metadata = {"name": name, "namespace": "team", "labels": labels, "annotations": labels | (said or {})}
    return {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": copy.deepcopy(spec or WORKING)}


def pods_of(reviews: Reviews, tree: Json, reference: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield the copy, the role and the pod of each member, with the labels of the kind and the templates of its roles."""
    group, _, _ = tree["apiVersion"].rpartition("/")
    entry = reviews.settings.gang_table[f"{group}/{tree['kind']}"]
    values = {role: value for value, role in entry.role_values.items()}
    for gang in gangs_of(entry, tree):
        for copied in range(gang.copies):
            for role in gang.roles:
                for number in range(role.count):
                    marks = {name: str(copied) for name in entry.copy_labels}
                    marks |= {name: str(number) for name in entry.index_labels}
                    marks |= {name: values.get(role.name, role.name) for name in entry.role_labels[:1]}
                    spec = role.template["spec"] if role.template else WORKING
                    pod = owned_pod(f"{role.name}-{copied}-{number}", reference, marks, spec)
                    yield str(copied), role.name, pod
