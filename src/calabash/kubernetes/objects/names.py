"""Names that stand in objects of the API server. A name never changes its meaning."""

from __future__ import annotations

GROUP = "calabash.dev"
VERSION = "v1alpha1"

# What a container asks for, in ``resources.limits``. The kubelet counts ``gpus`` in tokens of the device plug-in, one for
# each device of the container; memory (bytes) and cores (percent) are per device and count nowhere.
GPUS = f"{GROUP}/gpus"
MEMORY = f"{GROUP}/memory"
CORES = f"{GROUP}/cores"

# Annotations by which a user says more about all requests of a pod.
MODE = f"{GROUP}/mode"
POLICY = f"{GROUP}/policy"
ISOLATION = f"{GROUP}/isolation"
MODELS = f"{GROUP}/models"
SPILL = f"{GROUP}/spill"
GANG = f"{GROUP}/gang"
GANG_SIZE = f"{GROUP}/gang-size"
RUN_TIME = f"{GROUP}/run-time"
MOVABLE = f"{GROUP}/movable"

# ``ISOLATION`` as the label of a namespace is the least level of its pods.

# Label of a namespace, or of a pod where the namespace allows it: the queue. The annotation of the namespace allows more
# queues than its own to its pods: names with commas, or ``*``.
QUEUE = f"{GROUP}/queue"
QUEUES = f"{GROUP}/queues"

# Label of a node: the pool that it is in, which a planner of its own may plan. Label of a queue that has no parent: the pool in
# which its pods, and those of all queues below it, run. ``shards`` says what follows.
POOL = f"{GROUP}/pool"

# Labels of a GpuNode, where planners share a cluster: the lease of the planner that plans it; and the lease of the one from
# whom it was taken, which is to be looked at once more before the node is planned.
PLANNED_BY = f"{GROUP}/planned-by"
TAKEN_FROM = f"{GROUP}/taken-from"

# Label of a queue that a tenant has: the tenant. Namespaces of another are not let into it, whatever they say.
TENANT = f"{GROUP}/tenant"

# Label of a node: by which door its devices are asked for, see ``doors``.
DOOR = f"{GROUP}/door"

# Label of a namespace: ``off`` leaves its pods alone; ``optional`` lets pods in as they are while nobody admits.
ADMISSION = f"{GROUP}/admission"

# Written by the product alone; nobody else may set them.
REQUEST = f"{GROUP}/request"  # JSON: what admission understood, see ``asked``
PLAN = f"{GROUP}/plan"  # JSON: where each container's slices are, see ``plan``
DIALECT = f"{GROUP}/dialect"  # in whose words it was asked

PLANNED = f"{GROUP}/Planned"  # condition of a pod whose node others chose: why it has no plan
PLAN_GATE = f"{GROUP}/plan"  # scheduling gate that holds a pod until its plan stands
SCHEDULER = "calabash"  # schedulerName
STARTUP_TAINT = f"{GROUP}/agent-not-ready"  # on a node until its agent serves
DEVICE_TAINT = f"{GROUP}/gpu"  # keeps others off nodes whose devices the planner manages

NETWORK_FINALIZER = f"{GROUP}/network"  # keeps a network object that is deleted until the server has given it up

CDI_KIND = f"{GROUP}/slot"
FIELD_MANAGER = "calabash"
