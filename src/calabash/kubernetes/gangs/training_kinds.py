"""Kinds of training and data systems: Kubeflow, MPI Operator, KubeRay and Spark Operator."""

from __future__ import annotations

from calabash.kubernetes.gangs.kubernetes_kinds import COMPLETION_INDEX
from calabash.kubernetes.gangs.owner import Each, GangOwner, OrderRule, RoleRule

_KUBEFLOW_INDEX = "training.kubeflow.org/replica-index"


def _kubeflow(kind: str, at: str, *, elastic: bool = False) -> GangOwner:
    """Return the entry of a job kind of Kubeflow's training operator.

    Args:
        kind: the kind.
        at: path of the map of replica specs.
        elastic: True if the workers have limits in ``spec.elasticPolicy``.
    """
    return GangOwner(
        system="Kubeflow Training Operator",
        group="kubeflow.org",
        kind=kind,
        plural=f"{kind.lower()}s",
        versions=("v1",),
        roles=(
            RoleRule(
                at=at,
                each=Each.MAP,
                lower_case=True,
                replicas=("replicas",),
                minimum="$.spec.elasticPolicy.minReplicas" if elastic else "",
                maximum="$.spec.elasticPolicy.maxReplicas" if elastic else "",
                elastic_roles=("worker",) if elastic else (),
                template=("template",),
            ),
        ),
        minimum=("spec.runPolicy.schedulingPolicy.minAvailable",),
        role_labels=("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role"),
        index_labels=(_KUBEFLOW_INDEX,),
    )


_MPI = GangOwner(
    system="MPI Operator, Kubeflow Training Operator",
    group="kubeflow.org",
    kind="MPIJob",
    plural="mpijobs",
    versions=("v2beta1", "v1"),
    roles=(
        RoleRule(
            at="spec.mpiReplicaSpecs", each=Each.MAP, lower_case=True, replicas=("replicas",), template=("template",)
        ),
    ),
    minimum=("spec.runPolicy.schedulingPolicy.minAvailable",),
    order=OrderRule(path="spec.launcherCreationPolicy", values=("WaitForWorkersReady",), late=("launcher",)),
    # The training operator's launcher has the job role "master".
    role_labels=("training.kubeflow.org/replica-type", "training.kubeflow.org/job-role"),
    index_labels=(_KUBEFLOW_INDEX,),
)
_TRAIN_JOB = GangOwner(
    system="Kubeflow Trainer",
    group="trainer.kubeflow.org",
    kind="TrainJob",
    plural="trainjobs",
    versions=("v1alpha1",),
    delegates_to="jobset.x-k8s.io/JobSet",
    roles=(RoleRule(name="node", replicas=("spec.trainer.numNodes",), resources="spec.trainer.resourcesPerNode"),),
    role_labels=("jobset.sigs.k8s.io/replicatedjob-name",),
    index_labels=(COMPLETION_INDEX,),
    note="the JobSet that the trainer creates counts; it may have more roles, from the runtime",
)


def _ray(kind: str, spec: str, *, delegates_to: str = "", note: str = "") -> GangOwner:
    """Return the entry of a kind of KubeRay.

    Args:
        kind: the kind.
        spec: path of the specification of the cluster.
        delegates_to: kind of the object that has the counts.
        note: a limit.
    """
    return GangOwner(
        system="KubeRay",
        group="ray.io",
        kind=kind,
        plural=f"{kind.lower()}s",
        versions=("v1",),
        delegates_to=delegates_to,
        roles=(
            RoleRule(name="head", at=f"{spec}.headGroupSpec", template=("template",)),
            RoleRule(
                at=f"{spec}.workerGroupSpecs",
                each=Each.LIST,
                name_at="groupName",
                replicas=("replicas", "minReplicas"),
                default=0,
                pods="numOfHosts",
                none_if="suspend",
                minimum="minReplicas",
                maximum="maxReplicas",
                elastic_if=f"$.{spec}.enableInTreeAutoscaling",
                template=("template",),
            ),
        ),
        role_labels=("ray.io/group",),
        role_values={"headgroup": "head"},
        index_labels=("ray.io/replica-index",),
        note=note,
    )


_RAY_CLUSTER = "ray.io/RayCluster"
_SPARK = GangOwner(
    system="Spark Operator",
    group="sparkoperator.k8s.io",
    kind="SparkApplication",
    plural="sparkapplications",
    versions=("v1beta2",),
    roles=(
        RoleRule(
            name="driver",
            at="spec.driver",
            cpu="cores",
            gpu_name="gpu.name",
            gpus="gpu.quantity",
        ),
        RoleRule(
            name="executor",
            at="spec.executor",
            replicas=("instances", "$.spec.dynamicAllocation.initialExecutors"),
            minimum="$.spec.dynamicAllocation.minExecutors",
            maximum="$.spec.dynamicAllocation.maxExecutors",
            elastic_if="$.spec.dynamicAllocation.enabled",
            cpu="cores",
            gpu_name="gpu.name",
            gpus="gpu.quantity",
        ),
    ),
    order=OrderRule(late=("executor",)),
    role_labels=("spark-role",),
    index_labels=("spark-exec-id",),
    note="the driver creates the executors, so they start as a gang after it",
)

KINDS = (
    _kubeflow("PyTorchJob", "spec.pytorchReplicaSpecs", elastic=True),
    _kubeflow("TFJob", "spec.tfReplicaSpecs"),
    _kubeflow("XGBoostJob", "spec.xgbReplicaSpecs"),
    _kubeflow("PaddleJob", "spec.paddleReplicaSpecs", elastic=True),
    _kubeflow("JAXJob", "spec.jaxReplicaSpecs"),
    _MPI,
    _TRAIN_JOB,
    _ray("RayCluster", "spec"),
    _ray("RayJob", "spec.rayClusterSpec", delegates_to=_RAY_CLUSTER, note="the pod that submits the job is no member"),
    _ray("RayService", "spec.rayClusterConfig", delegates_to=_RAY_CLUSTER),
    _SPARK,
)
