"""A claim is about to be used by a pod of this node: it is granted what was allocated to it, once for all its containers.

Called by the kubelet when a pod with the claim starts, again after a restart of the kubelet, and until it succeeds, so every
step may be repeated, by another process too: the note with the claim's CDI name comes first, then the grant with its entry in
the journal, then the file for the runtime, then the answer, before which the note is synced. The allocation is read from the
API server each time, for the kubelet does not tell it. What is refused is read by the pod's owner, word for word, in the
pod's events.

Each request of a claim has a CDI device of its own. The slot is the same, with all slices of the claim; the variable
``CALABASH_REQUEST_<n>`` names those of the request by their places in it, and the shim shows what any of them names. A second
claim of ours in one container would hide the first one's slot, so it is refused: here where the pod is known, else by the shim,
which counts variables ``CALABASH_CLAIM_<uid>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from calabash.adapters.cdi import ContainerEdits, write_spec
from calabash.adapters.clock import Clock
from calabash.adapters.kube.objects.claims import ResourceClaim
from calabash.adapters.kube.objects.core import Pod
from calabash.adapters.kubelet import ClaimRef, PreparedDevice
from calabash.kubernetes.claims.allocated import ClaimPlan, ClaimRequest, claim_plan
from calabash.kubernetes.claims.device_names import DRIVER
from calabash.kubernetes.node_plugin.claims.prepared_files import ClaimNote
from calabash.kubernetes.node_plugin.claims.resources import CLAIM_PREFIX, ClaimDesk
from calabash.kubernetes.node_plugin.claims.store import known_claim
from calabash.kubernetes.node_plugin.containers.device_ids import qualified
from calabash.kubernetes.node_plugin.containers.prepare import account_of, request_of
from calabash.kubernetes.node_plugin.containers.retry import Patience
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.objects.names import CDI_KIND
from calabash.kubernetes.objects.plan import PlannedContainer
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.node.agent import Grant, NodeAgent
from calabash.node.membership.container import claim_allocation
from calabash.sharing.brokered import MODE as BROKERED

GIVEN_BACK_S = 20.0  # the kubelet waits 45 s, and asks again
_LOOK_AGAIN_S = 0.01
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NAME_MAX = 128


class ClaimEdits(Protocol):
    """What containers need; see ``edits.NodeEdits``."""

    def of(self, grant: Grant, wanted: Sequence[DeviceUuid] | None = None) -> ContainerEdits:
        """To use these devices of a grant."""
        ...

    def of_observer(self, wanted: Sequence[DeviceUuid]) -> ContainerEdits:
        """To look at these devices."""
        ...


class ClaimPreparer:
    """Answers the kubelet for claims; see ``ClaimHandler``.

    Args:
        fetch: a claim by namespace and name, from the API server; None: there is none.
        edits: what containers need.
        refuse: called before anything new is granted; raises CalabashError while the node gives nothing to claims.
        changed: told a claim that was prepared, as it was fetched.
        pause: sleeps for so many seconds.
    """

    def __init__(
        self,
        agent: NodeAgent,
        pods: NodePods,
        desk: ClaimDesk,
        clock: Clock,
        *,
        fetch: Callable[[str, str], ResourceClaim | None],
        edits: ClaimEdits,
        refuse: Callable[[], None] = lambda: None,
        changed: Callable[[ResourceClaim], None] = lambda _claim: None,
        pause: Callable[[float], None],
    ) -> None:
        self._agent = agent
        self._pods = pods
        self._desk = desk
        self._clock = clock
        self._fetch = fetch
        self._edits = edits
        self._refuse = refuse
        self._changed = changed
        self._pause = pause
        self._leaving = 0  # how many are being given back; only a hint
        self._patience = Patience(clock=clock, leaving=self._somebody_leaves, pause=pause)

    def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Give it what was allocated to it. Raises CalabashError; the kubelet asks again."""
        with self._desk.turns.work(claim.uid):
            found = self._claim(claim)
            answer = self._prepared(claim, found)
        self._changed(found)
        return answer

    def _prepared(self, claim: ClaimRef, found: ResourceClaim) -> tuple[PreparedDevice, ...]:
        plan = claim_plan(found, self._agent.node, [state.device for state in self._agent.devices()])
        known = known_claim(found)
        pods = [pod for uid in known.pods if (pod := self._pods.known(uid)) is not None]
        self._require_alone(found, pods)
        note = self._desk.notes.keep(claim)
        self._desk.book.saw(known)
        if plan.admin_access:
            devices = {note.device(n): self._edits.of_observer(_cards(r)) for n, r in enumerate(plan.requests)}
        else:
            grant = self._patience.until_there_is_room(lambda: self._grant(plan, pods))
            devices = {
                note.device(n): self._request_edits(grant, plan, number=n, request=r)
                for n, r in enumerate(plan.requests)
            }
        write_spec(self._desk.specs, CLAIM_PREFIX + claim.uid, CDI_KIND, devices)
        self._desk.notes.settle(claim)
        return tuple(_answers(plan, note))

    def unprepare(self, claim: ClaimRef) -> None:
        """Release what it was granted, and wait until it is free: whoever comes next may need the room."""
        with self._desk.turns.work(claim.uid):
            self._leaving += 1
            try:
                why = "its claim was given back"
                if self._agent.end(claim_allocation(claim.uid), reason="ended", explanation=why):
                    self._wait_for_the_end(claim)
            finally:
                self._leaving -= 1
            self._desk.clear(claim.uid)

    def _wait_for_the_end(self, claim: ClaimRef) -> None:
        until_ns = self._clock.monotonic_ns() + int(GIVEN_BACK_S * 1e9)
        while self._agent.record(claim_allocation(claim.uid)) is not None:
            if self._clock.monotonic_ns() >= until_ns:
                raise CalabashError(
                    f"claim {claim.namespace}/{claim.name} is still used after {GIVEN_BACK_S:.0f} s",
                    reason=Reason.CONFLICT,
                    hint="its programs have been told to end; it is tried again",
                )
            self._pause(_LOOK_AGAIN_S)

    def _somebody_leaves(self) -> bool:
        return self._leaving > 0 or self._pods.any_leaves(record.id for record in self._agent.records())

    def _claim(self, ref: ClaimRef) -> ResourceClaim:
        found = self._fetch(ref.namespace, ref.name)
        if found is None or found.metadata.uid != ref.uid:
            what = "is not there any more" if found is None else f"is another one now ({found.metadata.uid})"
            raise CalabashError(
                f"claim {ref.namespace}/{ref.name} ({ref.uid}) {what}",
                reason=Reason.NOT_FOUND,
                hint="delete the pod; its owner makes it again",
            )
        return found

    def _require_alone(self, claim: ResourceClaim, pods: Iterable[Pod]) -> None:
        """No container that uses it uses another claim of ours. Raises CalabashError(CONFLICT)."""
        name, namespace = claim.metadata.name, claim.metadata.namespace
        for pod in pods:
            for container, used in claims_by_container(pod).items():
                for other in sorted(used - {name}) if name in used else ():
                    theirs = self._fetch(namespace, other)
                    if theirs is not None and _is_ours(theirs):
                        raise CalabashError(
                            f"container {container} of pod {namespace}/{pod.metadata.name} uses claims {name} and {other},"
                            f" both of {DRIVER}",
                            reason=Reason.CONFLICT,
                            hint="a container has one: put both requests into one claim",
                        )

    def _grant(self, plan: ClaimPlan, pods: Sequence[Pod]) -> Grant:
        name = claim_allocation(plan.uid)
        held = self._agent.record(name)
        placement = plan.placement(self._agent.node)
        if held is None:
            self._refuse()
        elif held.placement != placement:
            why = "its claim was allocated anew"
            self._agent.end(name, reason="replaced", explanation=why, gently=True)
        if plan.mode == BROKERED.name and len(plan.requests) > 1:
            raise CalabashError(
                f"claim {plan.namespace}/{plan.name} has {len(plan.requests)} requests with isolation brokered, whose worker"
                " shows all devices to each container",
                reason=Reason.MODE_CONFLICT,
                hint="one claim for each request",
            )
        planned = PlannedContainer(name=plan.name, mode=plan.mode, policy=plan.policy, slices=plan.slices)
        now_s, user = self._clock.now_s(), pods[0].metadata.name if pods else plan.name
        account: dict[str, Any] = account_of(pods[0]) if pods else {}
        request = replace(request_of(planned, plan.namespace), **account, standing=plan.mode == BROKERED.name)
        return self._agent.grant(
            AllocationRecord(
                id=name,
                state=AllocationState.GRANTED,
                request=request,
                placement=placement,
                user=f"{plan.namespace}/{user}"[:_NAME_MAX],
                command=(plan.name,),
                created_at=now_s,
                granted_at=now_s,
            )
        )

    def _request_edits(self, grant: Grant, plan: ClaimPlan, *, number: int, request: ClaimRequest) -> ContainerEdits:
        edits = self._edits.of(grant, _cards(request))
        # The list of a whole claim would begin with devices that a container of another request is not shown.
        env = edits.env if len(plan.requests) == 1 else tuple(e for e in edits.env if e[0] != _VISIBLE)
        return replace(edits, env=(*env, *request_environment(plan, number)))


def request_environment(plan: ClaimPlan, number: int) -> tuple[tuple[str, str], ...]:
    """What tells the shim whose slot it is, and which devices in it are the request's; a claim with one request needs none."""
    uid = "".join(c for c in plan.uid.lower() if c.isalnum())
    claim = (f"CALABASH_CLAIM_{uid}", f"{plan.namespace}/{plan.name}")
    if len(plan.requests) == 1:
        return (claim,)
    cards = _cards(plan.requests[number])
    places = ",".join(str(place) for place, part in enumerate(plan.slices) if part.device in cards)
    return claim, (f"CALABASH_REQUEST_{number}", places)


def claims_by_container(pod: Pod) -> dict[str, set[str]]:
    """The names of the claims that each container of a pod uses."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    names = {one.name: one.resource_claim_name or made.get(one.name) for one in pod.spec.resource_claims}
    return {
        container.name: {name for used in container.resources.claims if (name := names.get(used.name))}
        for container in (*pod.spec.init_containers, *pod.spec.containers)
    }


def _answers(plan: ClaimPlan, note: ClaimNote) -> Iterable[PreparedDevice]:
    """A request's CDI device stands at its first device: a container has all devices of a request, and needs it once."""
    for number, request in enumerate(plan.requests):
        for place, (device, share) in enumerate(zip(request.devices, request.share_ids, strict=True)):
            yield PreparedDevice(
                requests=(request.name.partition("/")[0],),
                pool=request.pool,
                device=device,
                cdi_names=() if place else (qualified(note.device(number)),),
                share_id=share,
            )


def _cards(request: ClaimRequest) -> tuple[DeviceUuid, ...]:
    return tuple(DeviceUuid(part.device) for part in request.slices)


def _is_ours(claim: ResourceClaim) -> bool:
    allocation = claim.status.allocation
    return allocation is not None and any(result.driver == DRIVER for result in allocation.devices.results)
