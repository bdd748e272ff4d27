"""Kinds of Kubernetes and of its special interest groups: Job, StatefulSet, PodGroup, LeaderWorkerSet, JobSet."""

from __future__ import annotations

from calabash.kubernetes.gangs.owner import Condition, Each, GangOwner, Makes, Naming, OrderRule, RoleRule, TopologyRule

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB = GangOwner(
    system="Kubernetes",
    group="batch",
    kind="Job",
    plural="jobs",
    versions=("v1",),
    makes=Makes.ANNOTATED,
    roles=(
        RoleRule(name="worker", pods="spec.parallelism", pods_at_most="spec.completions", template=("spec.template",)),
    ),
    index_labels=(COMPLETION_INDEX,),
)
_STATEFUL_SET = GangOwner(
    system="Kubernetes",
    group="apps",
    kind="StatefulSet",
    plural="statefulsets",
    versions=("v1",),
    makes=Makes.ANNOTATED,
    requires=(Condition(path="spec.podManagementPolicy", value="Parallel", absent="OrderedReady"),),
    roles=(RoleRule(name="replica", replicas=("spec.replicas",), template=("spec.template",)),),
    index_labels=("apps.kubernetes.io/pod-index",),
)
_GROUP_TOPOLOGY = TopologyRule(required="spec.schedulingConstraints.topology.0.key")
_POD_GROUP = GangOwner(
    system="Kubernetes",
    group="scheduling.k8s.io",
    kind="PodGroup",
    plural="podgroups",
    versions=("v1beta1", "v1alpha3", "v1alpha2"),
    roles=(RoleRule(name="members", replicas=("spec.schedulingPolicy.gang.minCount",)),),
    open_size=True,
    topology=(_GROUP_TOPOLOGY,),
    named_by=Naming(field="spec.schedulingGroup.podGroupName"),
    note="without a gang policy the pods start one by one",
)
_WORKLOAD = GangOwner(
    system="Kubernetes",
    group="scheduling.k8s.io",
    kind="Workload",
    plural="workloads",
    versions=("v1beta1", "v1alpha3", "v1alpha2"),
    gang_per_role=True,
    roles=(
        RoleRule(
            at="spec.podGroupTemplates",
            each=Each.LIST,
            replicas=("schedulingPolicy.gang.minCount",),
            topology=(TopologyRule(required="schedulingConstraints.topology.0.key"),),
        ),
    ),
    open_size=True,
    named_by=Naming(),
    note="each template is a gang of its own; pods name the PodGroup that is created from it",
)
_LEADER_WORKER_SET = GangOwner(
    system="LeaderWorkerSet",
    group="leaderworkerset.x-k8s.io",
    kind="LeaderWorkerSet",
    plural="leaderworkersets",
    versions=("v1",),
    serial_with=("leaderworkerset.sigs.k8s.io/exclusive-topology",),
    copies="spec.replicas",
    copy_labels=("leaderworkerset.sigs.k8s.io/group-index",),
    roles=(
        RoleRule(
            name="leader",
            template=("spec.leaderWorkerTemplate.leaderTemplate", "spec.leaderWorkerTemplate.workerTemplate"),
        ),
        RoleRule(
            name="worker",
            replicas=("spec.leaderWorkerTemplate.size",),
            less=1,
            subgroup="spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize",
            template=("spec.leaderWorkerTemplate.workerTemplate",),
        ),
    ),
    order=OrderRule(path="spec.startupPolicy", values=("LeaderReady",), late=("worker",)),
    role_labels=("leaderworkerset.sigs.k8s.io/worker-index",),
    role_values={"0": "leader"},
    other_role="worker",
    index_labels=("leaderworkerset.sigs.k8s.io/worker-index",),
)
_JOB_SET = GangOwner(
    system="JobSet",
    group="jobset.x-k8s.io",
    kind="JobSet",
    plural="jobsets",
    versions=("v1alpha2",),
    serial_with=("alpha.jobset.sigs.k8s.io/exclusive-topology",),
    roles=(
        RoleRule(
            at="spec.replicatedJobs",
            each=Each.LIST,
            replicas=("replicas",),
            pods="template.spec.parallelism",
            pods_at_most="template.spec.completions",
            template=("template.spec.template",),
            after="dependsOn",
            after_name="name",
        ),
    ),
    order=OrderRule(path="spec.startupPolicy.startupPolicyOrder", values=("InOrder",)),
    role_labels=("jobset.sigs.k8s.io/replicatedjob-name",),
    index_labels=(COMPLETION_INDEX,),
    subgroup_labels=("jobset.sigs.k8s.io/job-index",),
)

KINDS = (_JOB, _STATEFUL_SET, _POD_GROUP, _WORKLOAD, _LEADER_WORKER_SET, _JOB_SET)
