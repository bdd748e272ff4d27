"""Page of the pod dialects of other systems: their resource names from the registry, and the requests of the examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from calabash.kubernetes.dialects.pod import pod_of
from calabash.kubernetes.dialects.registry import DIALECTS
from calabash.kubernetes.dialects.translate import translate
from calabash.model.errors import CalabashError
from calabash.model.request import ComputePolicy, GpuRequest
from calabash.sharing.registry import mode_for

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "kube" / "dialects"

_INTRODUCTION = """# Kubernetes dialects

Pods that were written for other systems run on Calabash unchanged: admission reads the resource names and annotations of these
systems and writes the request, as understood, into the pod. A container may use the names of one system only; different
containers may use different systems. Limits and requests must be equal. Amounts are exact to the byte. Percentages and
fractions of memory refer to the card that is chosen, rounded down to whole thousandths.

If a system does not limit compute, or the pod does not request any, the slice has the policy `best-effort`: it is
promised no compute and uses what others leave, in proportion to its memory. In systems with one number for a fraction of a
card, the slice gets that part of the memory, and policy `burst` with the same part of the compute: guaranteed, and idle
time can be used as well. The annotations `calabash.dev/policy` and `calabash.dev/mode` override this in every dialect.
"""
_FACTS = """
## Other settings of a pod, in every dialect

Of several sources, the first one that is present counts.

* **queue**: label or annotation `calabash.dev/queue`; the label or annotation of another system
  (QUEUES); else the queue of the namespace.
* **gang**: annotations `calabash.dev/gang` with `calabash.dev/gang-size`; `spec.schedulingGroup.podGroupName`; label
  `scheduling.x-k8s.io/pod-group` or `pod-group.scheduling.sigs.k8s.io`; Volcano's annotation
  `scheduling.k8s.io/group-name`. If a PodGroup is named, it sets the size of the gang.
  PodGroups of Kubernetes are read in the newest version that is served of v1beta1, v1alpha3 and v1alpha2.
  The controller must create all pods at once: in a StatefulSet, set
  `podManagementPolicy: Parallel`. The Jobs of a JobSet form one gang if all their templates name it.
* **priority**: `spec.priority`, set by the PriorityClass.
* **mode, policy, isolation, models**: annotations `calabash.dev/mode`, `calabash.dev/policy`, `calabash.dev/isolation`,
  `calabash.dev/models` (separated by commas). The label `calabash.dev/isolation` of the namespace is the minimum level of its
  pods.
* **memory beyond the card**: annotation `calabash.dev/spill`, in bytes (`30Gi`): the part of the memory of each device that
  may be outside the card ([details](../how-to/spill.md#in-a-cluster)). It applies to every container of the pod that requests
  devices with an amount of memory.
* **run time, movable**: annotations `calabash.dev/run-time` (`1h30m`), `calabash.dev/movable` (`true`, for
  pods whose owner recreates them: see [moving pods](../concepts/planner.md#move-pods-to-make-room)).
"""


def dialects_page() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for dialect in DIALECTS:
        parts.append(f"\n## {dialect.system} (`{dialect.name}`)\n\n| name | meaning |\n|---|---|\n")
        parts += [f"| `{name}` | {meaning} |\n" for name, meaning in dialect.resources.items()]
        parts += [f"| `{name}` (of the pod) | {meaning} |\n" for name, meaning in dialect.annotations.items()]
    parts.append(
        "\n## Examples\n\nEach example is a file in `examples/kube/dialects`.\n\n"
        "| file | request | understood as |\n|---|---|---|\n"
    )
    for path in sorted(EXAMPLES.glob("*.yaml")):
        text = path.read_text()
        parts.append(
            f"| `{path.name}` | {text.splitlines()[0].removeprefix('# ')} | {_given(yaml.safe_load(text))} |\n"
        )
    queues = ", ".join(f"`{name}`" for dialect in DIALECTS for name in dialect.queues)
    return "".join(parts) + _FACTS.replace("QUEUES", queues)


def _given(tree: Any) -> str:
    try:
        asked = translate(pod_of(tree))
    except CalabashError as error:
        return f"refused: {error.message}; {error.hint}"
    assert asked is not None
    return "; ".join(_shown(part.request) for part in asked.containers)


def _shown(request: GpuRequest) -> str:
    mode = mode_for(request).name
    words = [f"{request.count} of {mode}" if request.count > 1 else mode]
    if mode == "vgpu":
        words.append(
            f"{request.memory_mib} MiB" if request.memory_mib else f"{(request.memory_milli or 0) / 10:g} % of memory"
        )
        share = f"{request.core_percent} % of compute"
        words.append("best-effort compute" if request.policy is ComputePolicy.BEST_EFFORT else share)
        if request.policy is ComputePolicy.BURST:
            words.append("burst")
    return ", ".join(words)
