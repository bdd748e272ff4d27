"""NodePrepareResources and NodeUnprepareResources: grant the allocation of a claim, once for all its containers.

The kubelet calls ``prepare`` when a pod with the claim starts. It repeats the call until it succeeds, and calls again
after its own restart. Every step can therefore be repeated, also by another agent process. The steps are: write the
note with the claim's CDI name, journal the grant, write the CDI spec, sync the note to disk, answer. The claim's
allocation is read from the API server in each call, because the kubelet does not send it. Errors appear word for word
in the events of the pod.

Each request of a claim has its own CDI device. All of them share one slot with all slices of the claim. The environment
variable ``CALABASH_REQUEST_<n>`` lists the indices of the slices that belong to request n, and the shim in the
container shows the slices that any of these variables lists. A second claim of this driver in the same container is
refused, because its slot would replace that of the first. It is refused here if the pod is known, and otherwise by the
shim, which counts the variables ``CALABASH_CLAIM_<uid>``.
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

GIVEN_BACK_S = 20.0  # the kubelet waits 45 s, and calls again
_POLL_S = 0.01
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NAME_MAX = 128


class ClaimEdits(Protocol):
    """CDI edits for containers; see ``edits.NodeEdits``."""

    def for_grant(self, grant: Grant, wanted: Sequence[DeviceUuid] | None = None) -> ContainerEdits:
        """Return the edits for a container that uses these devices of a grant."""
        ...

    def for_observer(self, wanted: Sequence[DeviceUuid]) -> ContainerEdits:
        """Return the edits for a container with admin access, which observes these devices and has no slice of them."""
        ...


class ClaimRules(Protocol):
    """Rules of the node for grants to claims."""

    def require(self) -> None:
        """Return if the node makes new grants to claims. Raises CalabashError if it makes none."""
        ...

    def prepared(self, claim: ResourceClaim) -> None:
        """Called after a claim was prepared, with the object that was read for that."""
        ...


class ClaimPreparer:
    """Answer the kubelet's calls for claims; see ``ClaimHandler``.

    Args:
        agent: grants and ends allocations on the node.
        pods: the pods of the node.
        desk: files and store of the node's claims.
        clock: the clock.
        fetch: reads a claim from the API server by namespace and name; returns None if it does not exist.
        edits: makes the CDI edits of containers.
        rules: the rules of the node, checked before each new grant.
        patience: retries a grant for which there are not enough free devices while an allocation is about to be
            released.
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
        rules: ClaimRules,
        patience: Patience,
    ) -> None:
        self._agent = agent
        self._pods = pods
        self._desk = desk
        self._clock = clock
        self._fetch = fetch
        self._edits = edits
        self._rules = rules
        self._patience = patience

    def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Grant the allocation of a claim and write its CDI spec; return its devices with their CDI names.

        Raises:
            CalabashError: the claim cannot be prepared now; the kubelet calls again.
        """
        with self._desk.locks.work(claim.uid):
            found = self._claim(claim)
            answer = self._prepared(claim, found)
        self._rules.prepared(found)
        return answer

    def _prepared(self, claim: ClaimRef, found: ResourceClaim) -> tuple[PreparedDevice, ...]:
        plan = claim_plan(found, self._agent.node, [state.device for state in self._agent.devices()])
        known = known_claim(found)
        pods = [pod for uid in known.pods if (pod := self._pods.known(uid)) is not None]
        self._require_alone(found, pods)
        note = self._desk.notes.ensure(claim)
        self._desk.store.update(known)
        if plan.admin_access:
            devices = {note.device(n): self._edits.for_observer(_cards(r)) for n, r in enumerate(plan.requests)}
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
        """End the allocation of a claim, and wait until its devices are free for the next pod.

        Raises:
            CalabashError: CONFLICT if processes still use the claim after ``GIVEN_BACK_S`` seconds.
        """
        with self._desk.locks.work(claim.uid, ends=True):
            why = "its claim was unprepared"
            if self._agent.end(claim_allocation(claim.uid), reason="ended", explanation=why):
                self._wait_for_the_end(claim)
            self._desk.clear(claim.uid)

    def _wait_for_the_end(self, claim: ClaimRef) -> None:
        until_ns = self._clock.monotonic_ns() + int(GIVEN_BACK_S * 1e9)
        while self._agent.record(claim_allocation(claim.uid)) is not None:
            if self._clock.monotonic_ns() >= until_ns:
                raise CalabashError(
                    f"claim {claim.namespace}/{claim.name} is still used after {GIVEN_BACK_S:.0f} s",
                    reason=Reason.CONFLICT,
                    hint="its processes were sent SIGTERM; the kubelet tries again",
                )
            self._patience.pause(_POLL_S)

    def _claim(self, ref: ClaimRef) -> ResourceClaim:
        found = self._fetch(ref.namespace, ref.name)
        if found is None or found.metadata.uid != ref.uid:
            what = (
                "does not exist any more" if found is None else f"was replaced by another claim ({found.metadata.uid})"
            )
            raise CalabashError(
                f"claim {ref.namespace}/{ref.name} ({ref.uid}) {what}",
                reason=Reason.NOT_FOUND,
                hint="delete the pod; its controller creates it again",
            )
        return found

    def _require_alone(self, claim: ResourceClaim, pods: Iterable[Pod]) -> None:
        """Check that no container of the pods uses a second claim of this driver beside ``claim``.

        Raises:
            CalabashError: CONFLICT if a container does.
        """
        name, namespace = claim.metadata.name, claim.metadata.namespace
        for pod in pods:
            for container, used in claims_by_container(pod).items():
                for other in sorted(used - {name}) if name in used else ():
                    theirs = self._fetch(namespace, other)
                    if theirs is not None and _is_ours(theirs):
                        raise CalabashError(
                            f"container {container} of pod {namespace}/{pod.metadata.name} uses claims {name} and {other},"
                            f" which are both of driver {DRIVER}",
                            reason=Reason.CONFLICT,
                            hint="a container can use one claim of this driver: put both requests into one claim",
                        )

    def _grant(self, plan: ClaimPlan, pods: Sequence[Pod]) -> Grant:
        name = claim_allocation(plan.uid)
        held = self._agent.record(name)
        placement = plan.placement(self._agent.node)
        if held is None:
            self._rules.require()
        elif held.placement != placement:
            why = "its claim was deallocated and allocated again"
            self._agent.end(name, reason="replaced", explanation=why, gently=True)
        if plan.mode == BROKERED.name and len(plan.requests) > 1:
            raise CalabashError(
                f"claim {plan.namespace}/{plan.name} has {len(plan.requests)} requests with isolation brokered; the worker of"
                " a claim shows all its devices to each container",
                reason=Reason.MODE_CONFLICT,
                hint="use one claim for each request",
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
        edits = self._edits.for_grant(grant, _cards(request))
        # CUDA_VISIBLE_DEVICES of the whole claim would also list devices of other requests.
        env = edits.env if len(plan.requests) == 1 else tuple(e for e in edits.env if e[0] != _VISIBLE)
        return replace(edits, env=(*env, *request_environment(plan, number)))


def request_environment(plan: ClaimPlan, number: int) -> tuple[tuple[str, str], ...]:
    """Return the environment variables of one request of a claim, which the shim in a container reads.

    They name the claim. If the claim has several requests, they also list the slices that belong to this one.

    Args:
        number: index of the request in the claim.
    """
    uid = "".join(c for c in plan.uid.lower() if c.isalnum())
    claim = (f"CALABASH_CLAIM_{uid}", f"{plan.namespace}/{plan.name}")
    if len(plan.requests) == 1:
        return (claim,)
    cards = _cards(plan.requests[number])
    places = ",".join(str(place) for place, part in enumerate(plan.slices) if part.device in cards)
    return claim, (f"CALABASH_REQUEST_{number}", places)


def claims_by_container(pod: Pod) -> dict[str, set[str]]:
    """Return the names of the ResourceClaim objects that each container of a pod uses, by container name."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    names = {one.name: one.resource_claim_name or made.get(one.name) for one in pod.spec.resource_claims}
    return {
        container.name: {name for used in container.resources.claims if (name := names.get(used.name))}
        for container in (*pod.spec.init_containers, *pod.spec.containers)
    }


def _answers(plan: ClaimPlan, note: ClaimNote) -> Iterable[PreparedDevice]:
    """Yield the prepared devices for the kubelet.

    A request has one CDI device for all its devices, so only its first device has a CDI name.
    """
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
