"""Kinds of other schedulers: Volcano, coscheduling, KAI and Grove."""

from __future__ import annotations

from calabash.kubernetes.gangs.owner import (
    Each,
    GangOwner,
    Naming,
    OrderRule,
    RoleMatch,
    RoleRule,
    ScalingRule,
    TopologyRule,
)

_VOLCANO_TOPOLOGY = TopologyRule(
    required="spec.networkTopology.highestTierAllowed", mode="spec.networkTopology.mode", soft="soft", prefix="tier "
)
_VOLCANO_JOB = GangOwner(
    system="Volcano",
    group="batch.volcano.sh",
    kind="Job",
    plural="jobs",
    versions=("v1alpha1",),
    roles=(
        RoleRule(
            name="default",
            at="spec.tasks",
            each=Each.LIST,
            replicas=("replicas",),
            minimum="minAvailable",
            template=("template",),
            after="dependsOn.name",
        ),
    ),
    minimum=("spec.minAvailable",),
    order=OrderRule(),
    topology=(_VOLCANO_TOPOLOGY,),
    role_labels=("volcano.sh/task-spec",),
    index_labels=("volcano.sh/task-index",),
)
_VOLCANO_GROUP = GangOwner(
    system="Volcano",
    group="scheduling.volcano.sh",
    kind="PodGroup",
    plural="podgroups",
    versions=("v1beta1",),
    roles=(RoleRule(name="members", replicas=("spec.minMember",)),),
    open_size=True,
    topology=(_VOLCANO_TOPOLOGY,),
    named_by=Naming(annotations=("scheduling.k8s.io/group-name",)),
)
_COSCHEDULING_GROUP = GangOwner(
    system="coscheduling",
    group="scheduling.x-k8s.io",
    kind="PodGroup",
    plural="podgroups",
    versions=("v1alpha1",),
    roles=(RoleRule(name="members", replicas=("spec.minMember",)),),
    open_size=True,
    named_by=Naming(labels=("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")),
)
_KAI_GROUP = GangOwner(
    system="KAI",
    group="scheduling.run.ai",
    kind="PodGroup",
    plural="podgroups",
    versions=("v2alpha2",),
    roles=(
        RoleRule(
            at="spec.subGroups",
            each=Each.LIST,
            replicas=("minMember",),
            parent_at="parent",
            topology=(
                TopologyRule(
                    required="topologyConstraint.requiredTopologyLevel",
                    preferred="topologyConstraint.preferredTopologyLevel",
                ),
            ),
        ),
        RoleRule(name="members", unless="spec.subGroups", replicas=("spec.minMember",)),
    ),
    open_size=True,
    minimum=("spec.minMember",),
    topology=(
        TopologyRule(
            required="spec.topologyConstraint.requiredTopologyLevel",
            preferred="spec.topologyConstraint.preferredTopologyLevel",
        ),
    ),
    role_labels=("kai.scheduler/subgroup-name",),
    named_by=Naming(annotations=("pod-group-name",)),
)
_GROVE = GangOwner(
    system="Grove",
    group="grove.io",
    kind="PodCliqueSet",
    plural="podcliquesets",
    versions=("v1alpha1",),
    copies="spec.replicas",
    copy_labels=("grove.io/podcliqueset-replica-index",),
    roles=(
        RoleRule(
            at="spec.template.cliques",
            each=Each.LIST,
            replicas=("spec.replicas",),
            minimum="spec.minAvailable",
            pod_spec="spec.podSpec",
            after="spec.startsAfter",
            scaling=ScalingRule(
                at="spec.template.podCliqueScalingGroups",
                roles="cliqueNames",
                replicas="replicas",
                minimum="minAvailable",
            ),
            topology=(TopologyRule(required="topologyConstraint.packDomain"),),
        ),
    ),
    order=OrderRule(path="spec.template.cliqueStartupType", values=("CliqueStartupTypeInOrder",), holds_pods=False),
    topology=(TopologyRule(required="spec.template.topologyConstraint.packDomain"),),
    role_labels=("grove.io/podclique",),
    role_match=RoleMatch.SUFFIX,
    index_labels=("grove.io/podclique-pod-index",),
)

KINDS = (_VOLCANO_JOB, _VOLCANO_GROUP, _COSCHEDULING_GROUP, _KAI_GROUP, _GROVE)
