"""Pods of kinds whose controllers are not built for tests, as the published sources of the controllers create them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.kube.api import Json

# Group, version and kind, and the plural. The last one has a second version, which another controller serves.
DEFINITIONS = {
    ("kubeflow.org", "v1", "PyTorchJob"): "pytorchjobs",
    ("kubeflow.org", "v1", "TFJob"): "tfjobs",
    ("kubeflow.org", "v1", "XGBoostJob"): "xgboostjobs",
    ("kubeflow.org", "v1", "PaddleJob"): "paddlejobs",
    ("kubeflow.org", "v1", "MPIJob"): "mpijobs",
}
_REPLICAS = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
}


def made_pods(owner: Json) -> Iterator[tuple[str, Json]]:
    """Yield the objects that a controller would create from an object of the cluster, each with its API.

    MPI operator's launcher is a Job, whose pod Kubernetes creates; all other objects are pods.
    """
    if owner["apiVersion"] == "kubeflow.org/v2beta1":
        yield from _mpi_operator(owner)
        return
    for name, part in owner["spec"][_REPLICAS[owner["kind"]]].items():
        for number in range(part.get("replicas", 1)):
            yield "api/v1", _kubeflow_pod(owner, name.lower(), number, part["template"])


def _mpi_operator(owner: Json) -> Iterator[tuple[str, Json]]:
    name, parts = owner["metadata"]["name"], owner["spec"]["mpiReplicaSpecs"]
    common = {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-name": name}
    for number in range(parts["Worker"]["replicas"]):
        labels = {"training.kubeflow.org/job-role": "worker", "training.kubeflow.org/replica-index": str(number)}
        yield "api/v1", _pod(owner, f"{name}-worker-{number}", parts["Worker"]["template"], common | labels)
    if owner["spec"].get("launcherCreationPolicy") == "WaitForWorkersReady":
        return  # a test with room for the workers would create it now
    template = copy.deepcopy(parts["Launcher"]["template"])
    template["metadata"] = {"labels": common | {"training.kubeflow.org/job-role": "launcher"}}
    template["spec"]["restartPolicy"] = "OnFailure"
    job = _pod(owner, f"{name}-launcher", {}, {})
    yield "apis/batch/v1", job | {"spec": {"template": template}}


def _kubeflow_pod(owner: Json, role: str, number: int, template: Json) -> Json:
    labels = {
        "training.kubeflow.org/operator-name": f"{owner['kind'].lower()}-controller",
        "training.kubeflow.org/job-name": owner["metadata"]["name"],
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(number),
    }
    if role in ("master", "chief", "launcher"):
        labels["training.kubeflow.org/job-role"] = "master"
    return _pod(owner, f"{owner['metadata']['name']}-{role}-{number}", template, labels)


def _pod(owner: Json, name: str, template: Json, labels: dict[str, str]) -> Json:
    reference: dict[str, Any] = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    made = copy.deepcopy(template)
    metadata = made.setdefault("metadata", {})
    metadata |= {"name": name, "ownerReferences": [reference], "labels": metadata.get("labels", {}) | labels}
    return made
