"""Reconcile prepared claims: detect claims that were deleted or deallocated, and report device status in the others.

Kubernetes does not notify a DRA driver when a claim is deleted, and an agent cannot watch only the claims of its node.
Each prepared claim is therefore read when the health of a device changes, and otherwise every ``POLL_S`` seconds. For a
claim that was just prepared, the status is computed from the object that was read to prepare it. The kubelet unprepares
the claims that it knows. The reconciler removes prepared claims that the kubelet has forgotten.
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
from calabash.model.messages import redacted
from calabash.node.agent import NodeAgent
from calabash.node.membership.container import claim_allocation

POLL_S = 15.0
MANAGER = "calabash-agent"

log = structlog.get_logger(__name__)


class ClaimReconciler:
    """Thread that reconciles prepared claims, apart from other threads because the API server may take long to answer.

    Args:
        client: client of the API server.
        agent: the devices and allocations of the node.
        desk: files and store of the node's claims.
    """

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
        """Stop the thread; wait until its current call of the API server returns."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def prepared(self, claim: ResourceClaim) -> None:
        """Let the thread report the status of a claim that was just prepared."""
        with self._news:
            self._due.setdefault(claim.metadata.uid, claim)
            self._news.notify_all()

    def follow(self, health: Mapping[DeviceUuid, Health]) -> None:
        """Set the health of the node's devices. If it has changed, let the thread reconcile all claims."""
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
        """Reconcile the claims in ``due`` once; all prepared claims if it is empty.

        Args:
            due: claims by UID. The value is the claim object if it was just read, otherwise None.
        """
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

        The note and the CDI spec of such a claim are deleted once its allocation on the node has ended.

        Args:
            note: the note of the claim.
            claim: the object of that name in the API server, which may be another claim; None if there is none.
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
        """Write the status of the claim's devices to the claim object.

        Does nothing if the claim is still being prepared, or if its status is up to date.
        """
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
