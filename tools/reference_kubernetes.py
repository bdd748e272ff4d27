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

_INTRODUCTION = """# Pods in other systems' words

A pod that was written for another system runs here unchanged: admission reads its words, and writes what it understood
into the pod. The words of one system stand in one container; different containers may use different ones. Limits and
requests must agree. Amounts are kept to the byte; percentages and fractions of memory are taken of the card that is
chosen, rounded down to whole thousandths.

Where a system does not limit compute, or the pod does not ask for any, the slice has the policy `best-effort`: it is
promised no compute and runs in what others leave, in proportion to their memory. A fraction of a card, in systems that know
one number for all of it, is that part of the memory and `burst` for the same part of the compute: guaranteed, and idle
time is lent. An annotation `calabash.dev/policy` or `calabash.dev/mode` says otherwise, in any dialect.
"""
_FACTS = """
## What a pod says besides its amounts, in any dialect

The first that is found counts.

* **queue**: label or annotation `calabash.dev/queue`; the one that another system's label or annotation names
  (QUEUES); else the queue of the namespace.
* **gang**: annotations `calabash.dev/gang` with `calabash.dev/gang-size`; `spec.schedulingGroup.podGroupName`; label
  `scheduling.x-k8s.io/pod-group` or `pod-group.scheduling.sigs.k8s.io`; Volcano's annotation
  `scheduling.k8s.io/group-name`. Where a PodGroup is named, the size of the gang is the PodGroup's.
  Whoever makes the pods has to make all of them at once: of a StatefulSet that is
  `podManagementPolicy: Parallel`. The Jobs of a JobSet are one gang when the templates of all name it.
* **priority**: `spec.priority`, as the PriorityClass gives it.
* **mode, policy, isolation, models**: annotations `calabash.dev/mode`, `calabash.dev/policy`, `calabash.dev/isolation`,
  `calabash.dev/models` (with commas). The label `calabash.dev/isolation` of the namespace is the least level of its pods.
* **memory beyond the card**: annotation `calabash.dev/spill`, in bytes (`30Gi`): the part of the memory of each device that
  need not lie on it ([how](../how-to/spill.md#in-a-cluster)). It is of every container of the pod that asks for devices,
  each by an amount of memory.
* **run time, movable**: annotations `calabash.dev/run-time` (`1h30m`), `calabash.dev/movable` (`true`, of
  pods whose owner makes them again: see [moving pods](../concepts/planner.md#move-pods-to-make-room)).
"""


def dialects_page() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for dialect in DIALECTS:
        parts.append(f"\n## {dialect.system} (`{dialect.name}`)\n\n| word | meaning |\n|---|---|\n")
        parts += [f"| `{name}` | {meaning} |\n" for name, meaning in dialect.resources.items()]
        parts += [f"| `{name}` (of the pod) | {meaning} |\n" for name, meaning in dialect.annotations.items()]
    parts.append(
        "\n## Examples\n\nEach is a file in `examples/kube/dialects`.\n\n| file | asks | is given |\n|---|---|---|\n"
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
        words.append("compute of what others leave" if request.policy is ComputePolicy.BEST_EFFORT else share)
        if request.policy is ComputePolicy.BURST:
            words.append("burst")
    return ", ".join(words)
