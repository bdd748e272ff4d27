"""A process that prepares one claim by a real agent, and is killed at one of its steps: ``HOME STATE STEP``.

Steps are counted from 1, one before and one after each writing; 0: it is not killed, and prints its answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from msgspec import structs
from tests.unit.kubernetes.claims.claims_world import allocated, share
from tests.unit.kubernetes.node.claim_desk import REF, Edits

from calabash.agent.node import NodeAgent
from calabash.kubernetes.claims.names import card_names
from calabash.kubernetes.node import claims
from calabash.kubernetes.node.claim_book import ClaimBook
from calabash.kubernetes.node.claim_notes import ClaimNotes
from calabash.kubernetes.node.pods import NodePods
from calabash.kubernetes.node.tenure import ClaimTenure
from calabash.seams.cdi import write_spec
from calabash.seams.clock import SystemClock
from calabash.seams.gpu.library import shim_library, simulated_environment
from calabash.seams.gpu.protocol import DriverOptions
from calabash.seams.gpu.vendors import open_present
from calabash.seams.store import open_store

NODE = "gpu-1"


class Steps:
    """Kills this process at the one that was asked for."""

    def __init__(self, last: int) -> None:
        self._left = last

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*words: Any, **named: Any) -> Any:
            self._step()
            answer = work(*words, **named)
            self._step()
            return answer

        return watched

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(home: Path, state: Path, last: int) -> None:
    store, book = open_store(f"sqlite:///{home}/journal.db"), ClaimBook()
    drivers = open_present(DriverOptions(sim_state=state))
    agent = NodeAgent(
        home=home,
        store=store,
        clock=SystemClock(),
        drivers=drivers,
        library=shim_library(),
        environment=simulated_environment(state),
        node=NODE,
        tenure=ClaimTenure(book),
    )
    agent.start()
    cards = [one.device for one in agent.devices()]
    claim = allocated(share(f"{card_names(cards)[cards[0].uuid]}-vgpu", 1056))
    claim = structs.replace(claim, metadata=structs.replace(claim.metadata, uid=REF.uid))
    steps = Steps(last)
    desk = claims.ClaimDesk(notes=ClaimNotes(home / "claims"), book=book, specs=home / "cdi")
    watched = replace(desk, notes=cast("Any", _Notes(desk.notes, steps)))
    cast("Any", claims).write_spec = steps.around(write_spec)
    agent._granting.grant = steps.around(agent._granting.grant)  # type: ignore[method-assign]
    agent._parts.store.grant = steps.around(agent._parts.store.grant)  # type: ignore[method-assign]
    preparer = claims.ClaimPreparer(
        agent,
        NodePods(lambda namespace, name: None, users=book.users),
        watched,
        SystemClock(),
        fetch=lambda namespace, name: claim,
        edits=Edits(),
        pause=time.sleep,
    )
    answer = preparer.prepare(REF)
    held = [[r.id, r.placement.slices[0].device, r.placement.slices[0].memory_mib] for r in agent.records()]
    specs = {path.name: json.loads(path.read_text()) for path in (home / "cdi").iterdir()}
    print(json.dumps({"names": [one.cdi_names for one in answer], "held": held, "specs": specs}))
    agent.stop()
    store.close()
    for driver in drivers:
        driver.close()


class _Notes:
    """Those of a desk, with steps."""

    def __init__(self, notes: ClaimNotes, steps: Steps) -> None:
        self.keep = steps.around(notes.keep)
        self.of, self.forget, self.all = notes.of, notes.forget, notes.all


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
