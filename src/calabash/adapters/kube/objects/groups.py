"""Groups of pods that belong together, in the words of the three systems that have such an object. None of them need be
installed: whoever watches them asks first, by ``KubeClient.serves``."""

from __future__ import annotations

import msgspec

from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta


class GangPolicy(KubeStruct, frozen=True):
    """All or none of at least this many."""

    min_count: int = 0


class GroupPolicy(KubeStruct, frozen=True):
    """``gang`` None: the pods of the group are started one by one."""

    gang: GangPolicy | None = None


class PodGroupSpec(KubeStruct, frozen=True):
    """``scheduling.k8s.io/v1alpha2`` (Kubernetes 1.36): pods name the group in ``spec.schedulingGroup``."""

    scheduling_policy: GroupPolicy = GroupPolicy()
    priority: int | None = None
    priority_class_name: str = ""


class PodGroup(KubeStruct, frozen=True):
    """A group of Kubernetes itself; Workloads make them from templates."""

    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()


class MemberGroupSpec(KubeStruct, frozen=True):
    """The common part of the older two; times in seconds, ``min_resources`` as quantities."""

    min_member: int = 0
    schedule_timeout_seconds: int | None = None
    min_resources: dict[str, str] = msgspec.field(default_factory=dict)
    queue: str = ""
    priority_class_name: str = ""


class MemberGroup(KubeStruct, frozen=True):
    """A group that its pods name by a label (coscheduling) or an annotation (Volcano)."""

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

# How a pod of the older two says which group it belongs to.
COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
VOLCANO_ANNOTATION = "scheduling.k8s.io/group-name"
