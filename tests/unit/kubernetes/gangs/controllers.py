"""The pods that the controllers of other systems create from an object, with the labels that they give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def job_set(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield the role and the pod of each pod of a JobSet."""
    for part in spec["replicatedJobs"]:
        job = part["template"]["spec"]
        parallelism = job.get("parallelism", 1)
        for index in range(part.get("replicas", 1)):
            for number in range(min(parallelism, job.get("completions", parallelism))):
                labels = {
                    "jobset.sigs.k8s.io/replicatedjob-name": part["name"],
                    "jobset.sigs.k8s.io/job-index": str(index),
                    "batch.kubernetes.io/job-completion-index": str(number),
                }
                yield part["name"], {"metadata": {"labels": labels}}


def leader_worker_set(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield the role and the pod of each pod of all groups of a LeaderWorkerSet."""
    for group in range(spec.get("replicas", 1)):
        for number in range(max(1, spec["leaderWorkerTemplate"].get("size", 1))):
            labels = {
                "leaderworkerset.sigs.k8s.io/group-index": str(group),
                "leaderworkerset.sigs.k8s.io/worker-index": str(number),
            }
            yield "worker" if number else "leader", {"metadata": {"labels": labels}}


def kubeflow(specs: Json) -> Iterator[tuple[str, Json]]:
    """Yield the role and the pod of each pod of a Kubeflow job."""
    for name, part in specs.items():
        for number in range(part.get("replicas", 1)):
            labels = {
                "training.kubeflow.org/replica-type": name.lower(),
                "training.kubeflow.org/replica-index": str(number),
            }
            yield name.lower(), {"metadata": {"labels": labels}}


def ray_cluster(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield the role and the pod of each pod of a RayCluster without autoscaling."""
    yield "head", {"metadata": {"labels": {"ray.io/group": "headgroup", "ray.io/node-type": "head"}}}
    for part in spec["workerGroupSpecs"]:
        for _ in range(0 if part.get("suspend") else part.get("replicas", 0) * part.get("numOfHosts", 1)):
            labels = {"ray.io/group": part["groupName"], "ray.io/node-type": "worker"}
            yield part["groupName"], {"metadata": {"labels": labels}}


def volcano_job(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield the role and the pod of each pod of a Volcano job."""
    for number, task in enumerate(spec["tasks"]):
        name = task.get("name") or f"default{number}"
        for index in range(task.get("replicas", 1)):
            labels = {"volcano.sh/task-spec": name, "volcano.sh/task-index": str(index)}
            yield name, {"metadata": {"annotations": labels}}


def pod_clique_set(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield the role and the pod of each pod of all replicas of a PodCliqueSet called ``set``."""
    template = spec["template"]
    groups = template.get("podCliqueScalingGroups", [])
    for copy in range(spec.get("replicas", 1)):
        for clique in template["cliques"]:
            name = clique["name"]
            group = next((one for one in groups if name in one["cliqueNames"]), None)
            stems = [f"set-{copy}"]
            if group is not None:
                stems = [f"set-{copy}-{group['name']}-{i}" for i in range(group.get("replicas", 1))]
            for stem in stems:
                for _ in range(clique["spec"].get("replicas", 1)):
                    labels = {
                        "grove.io/podclique": f"{stem}-{name}",
                        "grove.io/podcliqueset-replica-index": str(copy),
                    }
                    yield name, {"metadata": {"labels": labels}}


def spark_application(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield the role and the pod of each pod of a SparkApplication."""
    yield "driver", {"metadata": {"labels": {"spark-role": "driver"}}}
    for number in range(spec["executor"].get("instances", 1)):
        yield "executor", {"metadata": {"labels": {"spark-role": "executor", "spark-exec-id": str(number + 1)}}}
