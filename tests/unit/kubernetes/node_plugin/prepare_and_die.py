"""Process with a real agent that prepares a claim, unprepares it, or finds it deleted, and is killed at a step.

Its arguments are ``HOME STATE WHAT STEP``. WHAT is ``prepare``, ``unprepare`` or ``gone``. STEP is ``before`` or
``after`` and the name of a write, such as ``before grant``. With ``none`` the process is not killed, and prints the
prepared devices and what is left on the node.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from msgspec import structs
from tests.unit.kubernetes.claims.claims_world import allocated, share
from tests.unit.kubernetes.node_plugin.claim_desk import REF, Edits

from calabash.adapters.clock import SystemClock
from calabash.adapters.gpu.library import shim_library, simulated_environment
from calabash.adapters.gpu.protocol import DriverOptions
from calabash.adapters.gpu.vendors import open_present
from calabash.adapters.kube.objects.claims import ResourceClaim
from calabash.adapters.store import open_store
from calabash.kubernetes.claims.device_names import card_names
from calabash.kubernetes.node_plugin.claims import prepare
from calabash.kubernetes.node_plugin.claims import resources as claims_resources
from calabash.kubernetes.node_plugin.claims.prepared_files import ClaimNotes
from calabash.kubernetes.node_plugin.claims.reconciler import ClaimReconciler
from calabash.kubernetes.node_plugin.claims.store import ClaimStore
from calabash.kubernetes.node_plugin.containers.retry import Patience
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.node_plugin.retention import ClaimTenure
from calabash.node.agent import NodeAgent
from calabash_testing.api_server.client import MemoryKube

NODE = "gpu-1"
END_S = 60.0


class NoRules:
    """Rules by which every grant is made."""

    def require(self) -> None:
        pass

    def prepared(self, claim: ResourceClaim) -> None:
        pass


class Steps:
    """The steps before and after each write; this process is killed at the step ``last``."""

    def __init__(self, last: str) -> None:
        self._last = last

    def around(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*words: Any, **named: Any) -> Any:
            self._step(f"before {name}")
            answer = work(*words, **named)
            self._step(f"after {name}")
            return answer

        return watched

    def _step(self, step: str) -> None:
        if step == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main(home: Path, state: Path, what: str, last: str) -> None:
    store, claims = open_store(f"sqlite:///{home}/journal.db"), ClaimStore()
    drivers = open_present(DriverOptions(sim_state=state))
    agent = NodeAgent(
        home=home,
        store=store,
        clock=SystemClock(),
        drivers=drivers,
        library=shim_library(),
        environment=simulated_environment(state),
        node=NODE,
        retention=ClaimTenure(claims),
    )
    agent.start()
    desk = claims_resources.ClaimDesk(notes=ClaimNotes(home / "claims"), store=claims, specs=home / "cdi")
    for orphan in desk.begin([record.id for record in agent.records()]):
        agent.end(orphan, reason="ended", explanation="nothing is noted of its claim", gently=True)
    answer: Any = ()
    if what == "gone":
        _until_nothing_is_held(agent, ClaimReconciler(MemoryKube(), agent, desk))
    else:
        watch(Steps(last), agent, desk)
        preparer = _preparer(agent, desk)
        answer = preparer.prepare(REF)
        if what == "unprepare":
            preparer.unprepare(REF)
    held = [[r.id, r.placement.slices[0].device, r.placement.slices[0].memory_mib] for r in agent.records()]
    specs = {path.name: json.loads(path.read_text()) for path in (home / "cdi").iterdir() if path.suffix == ".json"}
    left = [p.name for d in ("cdi", "claims", "alloc") if (home / d).is_dir() for p in (home / d).iterdir()]
    agent.stop()
    store.close()
    for driver in drivers:
        driver.close()
    # Last: the log of the agent's threads has the same output.
    print(json.dumps({"names": [one.cdi_names for one in answer], "held": held, "specs": specs, "left": left}))


def watch(steps: Steps, agent: NodeAgent, desk: claims_resources.ClaimDesk) -> None:
    """Wrap every write of the claim's preparation, so that the process can be killed before or after it."""
    notes, desks, store = cast("Any", desk.notes), cast("Any", claims_resources), agent._parts.store
    notes.ensure, notes.remove = steps.around("note", notes.ensure), steps.around("forget", notes.remove)
    desks.remove_spec = steps.around("remove", desks.remove_spec)
    written = steps.around("rename", Path.rename)
    cast("Any", Path).rename = lambda path, to: (written if to.suffix == ".json" else os.rename)(path, to)
    agent._granting.grant = steps.around("grant", agent._granting.grant)  # type: ignore[method-assign]
    cast("Any", store).grant = steps.around("journal", store.grant)
    cast("Any", store).release = steps.around("release", store.release)


def _preparer(agent: NodeAgent, desk: claims_resources.ClaimDesk) -> prepare.ClaimPreparer:
    cards = [one.device for one in agent.devices()]
    claim = allocated(share(f"{card_names(cards)[cards[0].uuid]}-vgpu", 1056))
    claim = structs.replace(claim, metadata=structs.replace(claim.metadata, uid=REF.uid))
    clock = SystemClock()
    return prepare.ClaimPreparer(
        agent,
        NodePods(MemoryKube(), agent.node, users=desk.store.users),
        desk,
        clock,
        fetch=lambda namespace, name: claim,
        edits=Edits(),
        rules=NoRules(),
        patience=Patience(clock=clock, leaving=lambda: False),
    )


def _until_nothing_is_held(agent: NodeAgent, reconciler: ClaimReconciler) -> None:
    """Reconcile without any claim in the API server until no allocation is left."""
    until_s = time.monotonic() + END_S
    reconciler.round()
    while agent.records() and time.monotonic() < until_s:
        time.sleep(0.02)
    reconciler.round()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
