"""What a node keeps of claims: their CDI names, who uses them, and the specs for the runtime.

A note is written before anything else of a claim and removed after everything else, so what has no note is of an agent that was
killed while it wrote, and goes when the next one begins.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from calabash.adapters.cdi import list_specs, remove_spec, sweep_leftovers
from calabash.kubernetes.node_plugin.claims.locks import ClaimTurns
from calabash.kubernetes.node_plugin.claims.prepared_files import ClaimNotes
from calabash.kubernetes.node_plugin.claims.store import ClaimBook
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.membership.container import claim_allocation, is_of_claim

CLAIM_PREFIX = "calabash-claim-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDesk:
    """Of one node. ``specs``: the directory of dynamic CDI specs; ``turns``: who works on a claim has it meanwhile."""

    notes: ClaimNotes
    book: ClaimBook
    specs: Path
    turns: ClaimTurns = field(default_factory=ClaimTurns)

    def clear(self, uid: str) -> None:
        """Nothing of a claim is left here; by who has its turn. Raises CalabashError."""
        if self.notes.of(uid) is not None:
            remove_spec(self.specs, CLAIM_PREFIX + uid)
        self.notes.forget(uid)
        self.book.forget(uid)

    def begin(self, held: Collection[AllocationId]) -> list[AllocationId]:
        """Remove what agents that were killed have left half made; before the kubelet is served. What of ``held`` belongs to
        no claim that is noted is for nobody: the caller ends it."""
        self.notes.sweep()
        with suppress(OSError):
            sweep_leftovers(self.specs, CLAIM_PREFIX)
        noted = {note.uid for note in self.notes.all()}
        with suppress(CalabashError):
            for spec in list_specs(self.specs, CLAIM_PREFIX):
                uid = spec.name.removeprefix(CLAIM_PREFIX)
                if uid not in noted and claim_allocation(uid) not in held:
                    remove_spec(self.specs, spec.name)
        known = {claim_allocation(uid) for uid in noted}
        return [name for name in held if is_of_claim(name) and name not in known]
