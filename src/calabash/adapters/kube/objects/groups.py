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
    """Spec of ``scheduling.k8s.io/v1alpha2`` (Kubernetes 1.36); pods name the group in ``spec.schedulingGroup``."""

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


POD_GROUP = Kind(
    api_version="scheduling.k8s.io/v1alpha2", name="PodGroup", plural="podgroups", namespaced=True, type=PodGroup
)
COSCHEDULING_GROUP = Kind(
    api_version="scheduling.x-k8s.io/v1alpha1", name="PodGroup", plural="podgroups", namespaced=True, type=MemberGroup
)
VOLCANO_GROUP = Kind(
    api_version="scheduling.volcano.sh/v1beta1", name="PodGroup", plural="podgroups", namespaced=True, type=MemberGroup
)
