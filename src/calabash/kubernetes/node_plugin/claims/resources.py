"""State of the claims of a node: notes with CDI names, the store of known claims, CDI specs and locks.

A claim's note is written before its other files. A CDI spec without a note was therefore left by an agent that was
killed, and is removed when the next agent starts.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from calabash.adapters.cdi import list_specs, remove_spec, sweep_leftovers
from calabash.kubernetes.node_plugin.claims.locks import ClaimLocks
from calabash.kubernetes.node_plugin.claims.prepared_files import ClaimNotes
from calabash.kubernetes.node_plugin.claims.store import ClaimStore
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.membership.container import claim_allocation, is_of_claim

CLAIM_PREFIX = "calabash-claim-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDesk:
    """Files and locks of the prepared claims of one node.

    Args:
        notes: one file for each prepared claim, with its CDI name.
        store: the prepared claims as they were last read.
        specs: directory of dynamic CDI specs.
        locks: one lock for each claim.
    """

    notes: ClaimNotes
    store: ClaimStore
    specs: Path
    locks: ClaimLocks = field(default_factory=ClaimLocks)

    def clear(self, uid: str) -> None:
        """Delete the CDI spec, the note and the stored state of a claim. The caller holds the lock of the claim.

        Raises:
            CalabashError: the spec cannot be deleted; the note is then kept.
        """
        if self.notes.find(uid) is not None:
            remove_spec(self.specs, CLAIM_PREFIX + uid)
        self.notes.remove(uid)
        self.store.remove(uid)

    def begin(self, held: Collection[AllocationId]) -> list[AllocationId]:
        """Remove incomplete state that killed agents left. Must be called before the kubelet is served.

        Args:
            held: the allocations of the node.

        Returns:
            The allocations in ``held`` that belong to claims without a note. The caller must end them.
        """
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
