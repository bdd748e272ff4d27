"""Types of pod groups of three systems: Kubernetes, coscheduling and Volcano.

The kinds need not be installed: check with ``KubeClient.serves`` before a watch.
"""

from __future__ import annotations

import msgspec

from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta


class GangPolicy(KubeStruct, frozen=True):
    """Gang: at least ``min_count`` pods of the group start together, or none."""

    min_count: int = 0


class GroupPolicy(KubeStruct, frozen=True):
    """Scheduling policy of a group; without ``gang`` its pods are started one by one."""

    gang: GangPolicy | None = None


class PodGroupSpec(KubeStruct, frozen=True):
    """Spec of ``scheduling.k8s.io`` (Kubernetes 1.36: v1alpha2; 1.37: v1alpha3 and v1beta1).

    Pods name the group in ``spec.schedulingGroup``.
    """

    scheduling_policy: GroupPolicy = GroupPolicy()
    priority: int | None = None
    priority_class_name: str = ""


class PodGroup(KubeStruct, frozen=True):
    """Pod group of Kubernetes; Workloads create them from templates."""

    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()


class MemberGroupSpec(KubeStruct, frozen=True):
    """Common fields of the specs of coscheduling and Volcano groups; ``min_resources`` are quantities by resource."""

    min_member: int = 0
    schedule_timeout_seconds: int | None = None
    min_resources: dict[str, str] = msgspec.field(default_factory=dict)
    queue: str = ""
    priority_class_name: str = ""


class MemberGroup(KubeStruct, frozen=True):
    """Pod group that its pods name by a label (coscheduling) or an annotation (Volcano)."""

    metadata: ObjectMeta
    spec: MemberGroupSpec = MemberGroupSpec()


# Versions of the same objects, the newest first. The fields that are read are the same in all of them.
POD_GROUP_VERSIONS = tuple(
    Kind(
        api_version=f"scheduling.k8s.io/{version}", name="PodGroup", plural="podgroups", namespaced=True, type=PodGroup
    )
    for version in ("v1beta1", "v1alpha3", "v1alpha2")
)
POD_GROUP = POD_GROUP_VERSIONS[-1]
COSCHEDULING_GROUP = Kind(
    api_version="scheduling.x-k8s.io/v1alpha1", name="PodGroup", plural="podgroups", namespaced=True, type=MemberGroup
)
VOLCANO_GROUP = Kind(
    api_version="scheduling.volcano.sh/v1beta1", name="PodGroup", plural="podgroups", namespaced=True, type=MemberGroup
)
