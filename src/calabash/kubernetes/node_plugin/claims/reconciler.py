"""Reconcile prepared claims: detect claims that were deleted or deallocated, and report device status in the others.

A driver is not notified when a claim is deleted, and claims cannot be watched by node. So each prepared claim is read when
the health of a device changes, and otherwise every ``POLL_S`` seconds. A claim that was just prepared is reported from the
object that was read for that. The kubelet unprepares the claims that it knows; this removes those that it has forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.claims import RESOURCE_CLAIM, ResourceClaim
from calabash.kubernetes.claims.allocated import claim_plan
from calabash.kubernetes.node_plugin.claims.prepared_files import ClaimNote
from calabash.kubernetes.node_plugin.claims.resources import ClaimDesk
from calabash.kubernetes.node_plugin.claims.status import claim_status
from calabash.kubernetes.node_plugin.claims.store import known_claim
from calabash.model.device import DeviceUuid, Health
from calabash.model.errors import CalabashError
from calabash.model.mentions import redacted
from calabash.node.agent import NodeAgent
from calabash.node.membership.container import claim_allocation

POLL_S = 15.0
MANAGER = "calabash-agent"

log = structlog.get_logger(__name__)


class ClaimReconciler:
    """Thread that reconciles prepared claims. The API server may take long to answer."""

    def __init__(self, client: KubeClient, agent: NodeAgent, desk: ClaimDesk) -> None:
        self._client = client
        self._agent = agent
        self._desk = desk
        self._due: dict[
            str, ResourceClaim | None
        ] = {}  # claims to reconcile, by UID, with the object if it was just read
        self._news = threading.Condition()
        self._stopping = False
        self._health: Mapping[DeviceUuid, Health] = {}
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="claim-care", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the call in progress."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def prepared(self, claim: ResourceClaim) -> None:
        """Report the status of a claim that was just prepared."""
        with self._news:
            self._due.setdefault(claim.metadata.uid, claim)
            self._news.notify_all()

    def follow(self, health: Mapping[DeviceUuid, Health]) -> None:
        """Update the health of the devices. If it has changed, reconcile all claims."""
        with self._news:
            changed = bool(self._health) and health != self._health
            self._health = health
        if changed:
            with self._news:
                self._due = {note.uid: None for note in self._desk.notes.all()}
                self._news.notify_all()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._stopping or bool(self._due), POLL_S)
                if self._stopping:
                    return
                due, self._due = self._due, {}
            self.round(due)

    def round(self, due: Mapping[str, ResourceClaim | None] | None = None) -> None:
        """Reconcile the claims in ``due``, or all if it is empty."""
        for note in self._desk.notes.all():
            if self._stopping:
                return
            if not due or note.uid in due:
                try:
                    found = due[note.uid] if due else None
                    if found is not None:
                        self._write_status(found)
                    else:
                        self._reconcile(note)
                    self._told = ""
                except CalabashError as error:  # a repeated error is logged once
                    if error.message != self._told:
                        log.warning("cannot reconcile a claim", claim=note.uid, error=error.message)
                    self._told = error.message

    def _reconcile(self, note: ClaimNote) -> None:
        with self._desk.locks.observe(note.uid) as done:
            claim = self._client.get(RESOURCE_CLAIM, note.name, note.namespace)
            with done() as still:
                over = self._update_store(note, claim) if still else True
        if claim is not None and not over:
            self._write_status(claim)

    def _update_store(self, note: ClaimNote, claim: ResourceClaim | None) -> bool:
        """Update the store from the claim object; return True if the claim is deleted or deallocated.

        If such a claim has no allocation any more, its note and its spec are deleted.
        """
        if claim is None or claim.metadata.uid != note.uid:
            self._desk.store.mark_ended(note.uid)
            over = True
        else:
            known = known_claim(claim)
            self._desk.store.update(known)
            over = known.over
        if over and self._agent.record(claim_allocation(note.uid)) is None:
            self._desk.clear(note.uid)
        return over

    def _write_status(self, claim: ResourceClaim) -> None:
        """Write the status of the claim's devices, unless the claim is still being prepared or its status is current."""
        states = self._agent.devices()
        plan = claim_plan(claim, self._agent.node, [state.device for state in states])
        record = self._agent.record(claim_allocation(claim.metadata.uid))
        if record is None and not plan.admin_access:
            return
        cards = {state.device.uuid: state.device for state in states}
        causes = {state.device.uuid: redacted(state.cause) for state in states if state.cause}
        devices = claim_status(claim, plan, record.id if record is not None else None, cards, causes)
        if devices is None:
            return
        body = {"metadata": {"uid": claim.metadata.uid}, "status": {"devices": devices}}
        self._client.patch(
            RESOURCE_CLAIM,
            claim.metadata.name,
            claim.metadata.namespace,
            body=body,
            style="apply",
            subresource="status",
            field_manager=MANAGER,
            force=True,
        )
