"""Names of labels, annotations, resources and taints in objects of the API server.

Objects outlive releases of the product, so a name never changes its meaning.
"""

from __future__ import annotations

GROUP = "calabash.dev"
VERSION = "v1alpha1"

# Requests of a container, in ``resources.limits``. The kubelet counts ``gpus`` in device IDs of the device plug-in, one
# per device of the container. Memory (bytes) and cores (percent) are per device and not counted by the kubelet.
GPUS = f"{GROUP}/gpus"
MEMORY = f"{GROUP}/memory"
CORES = f"{GROUP}/cores"

# Annotations of a pod with further terms of its requests.
MODE = f"{GROUP}/mode"
POLICY = f"{GROUP}/policy"
ISOLATION = f"{GROUP}/isolation"
MODELS = f"{GROUP}/models"
SPILL = f"{GROUP}/spill"
GANG = f"{GROUP}/gang"
GANG_SIZE = f"{GROUP}/gang-size"
RUN_TIME = f"{GROUP}/run-time"
MOVABLE = f"{GROUP}/movable"
GANG_OF_OWNER = f"{GROUP}/gang-of-owner"  # of an owner: "true" makes its pods a gang, "false" (also of a pod) does not

# ``ISOLATION`` as the label of a namespace is the least level of its pods.

# Label of a namespace, or of a pod if the namespace allows it: the queue. The annotation ``QUEUES`` of the namespace
# allows more queues to its pods: names separated by commas, or ``*``.
QUEUE = f"{GROUP}/queue"
QUEUES = f"{GROUP}/queues"

# Label of a node: its pool, which may have its own planner. Label of a queue without a parent: the pool in which pods
# of the queue and of all queues below it run. See ``shards``.
POOL = f"{GROUP}/pool"

HOSTNAME = "kubernetes.io/hostname"  # label of a node

# Labels of a GpuNode if several planners share a cluster: the lease of the planner that plans it; and the lease of the
# planner from which it was taken, whose last writes are read once more before the node is planned.
PLANNED_BY = f"{GROUP}/planned-by"
TAKEN_FROM = f"{GROUP}/taken-from"

# Label of a queue that belongs to a tenant: the tenant. Namespaces of another tenant cannot use the queue.
TENANT = f"{GROUP}/tenant"

# Label of a node: its allocation API, see ``allocation_api``.
ALLOCATION_API = f"{GROUP}/door"

# Label of a namespace: ``off`` exempts its pods; ``optional`` admits pods unchanged while no admission server answers.
ADMISSION = f"{GROUP}/admission"

# Written by the product only; other users may not set them.
REQUEST = f"{GROUP}/request"  # JSON: the request that admission read, see ``pod_request``
PLAN = f"{GROUP}/plan"  # JSON: the devices and slices of each container, see ``plan``
DIALECT = f"{GROUP}/dialect"  # the dialects in which the pod asked
GANG_MEMBER = f"{GROUP}/gang-member"  # JSON: the pod as a member of its owner's gang, see ``gang_member``

PLANNED = f"{GROUP}/Planned"  # condition of a pod that another scheduler bound: the reason why it has no plan
# Condition of a pod that waits: the message of its condition ``PodScheduled`` with marked names, see ``message_codec``.
EXPLANATION = f"{GROUP}/Explanation"
PLAN_GATE = f"{GROUP}/plan"  # scheduling gate that holds a pod until it has a plan
SCHEDULER = "calabash"  # schedulerName
STARTUP_TAINT = f"{GROUP}/agent-not-ready"  # on a node until its agent is ready
DEVICE_TAINT = f"{GROUP}/gpu"  # keeps other pods off nodes whose devices the planner manages

NETWORK_FINALIZER = f"{GROUP}/network"  # keeps a deleted network object until the server has released it

CDI_KIND = f"{GROUP}/slot"
