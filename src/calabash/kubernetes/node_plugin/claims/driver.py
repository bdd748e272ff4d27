"""DRA driver of the agent: serve the kubelet's calls, publish ResourceSlices, and reconcile prepared claims."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from calabash.adapters.clock import SystemClock
from calabash.adapters.host.pci.devices import PciTree
from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.claims import RESOURCE_CLAIM, ResourceClaim
from calabash.adapters.kubelet import DeviceHealth, DeviceState, DraServer
from calabash.kubernetes.claims.device_names import DRIVER, claim_devices
from calabash.kubernetes.claims.slice_publisher import SlicePublisher
from calabash.kubernetes.claims.slices import SliceFacts, pcie_roots
from calabash.kubernetes.node_plugin.allocation_api import AllocationApiWatch
from calabash.kubernetes.node_plugin.claims.prepare import ClaimEdits, ClaimPreparer
from calabash.kubernetes.node_plugin.claims.reconciler import ClaimReconciler
from calabash.kubernetes.node_plugin.claims.resources import ClaimDesk
from calabash.kubernetes.node_plugin.containers.retry import Patience
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.model.device import OUT_OF_SERVICE, DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import redacted
from calabash.node.agent import NodeAgent
from calabash.node.membership.container import is_of_claim
from calabash.node.snapshot import NodeSnapshot

log = structlog.get_logger(__name__)


class AllocationApiRules:
    """Rules of the node for grants to claims; implements ``prepare.ClaimRules``.

    Args:
        node: name of the node.
        api_watch: the allocation API of the node.
        refuse: raises CalabashError while the node makes no new grants.
        reconciler: reports the status of claims.
    """

    def __init__(
        self, node: str, api_watch: AllocationApiWatch, refuse: Callable[[], None], reconciler: ClaimReconciler
    ) -> None:
        self._node, self._api_watch, self._refuse, self._reconciler = node, api_watch, refuse, reconciler

    def require(self) -> None:
        """Return if the node makes new grants to claims. Raises CalabashError if it makes none."""
        if not self._api_watch.claims:
            raise CalabashError(
                f"the devices of node {self._node} are offered by device plug-ins, not to claims",
                reason=Reason.CONFLICT,
                hint="delete the pod; the node's label calabash.dev/door selects the allocation API",
            )
        self._refuse()

    def prepared(self, claim: ResourceClaim) -> None:
        self._reconciler.prepared(claim)


class ClaimDriver:
    """The DRA driver of a node.

    New claims are prepared while the allocation API of the node is ``claims``. Prepared claims are served until they
    are unprepared, also after the allocation API has changed.

    Args:
        settings: settings of the agent.
        client: client of the API server.
        agent: grants and ends allocations on the node.
        pods: the pods of the node.
        desk: files and store of the node's claims.
        api_watch: the allocation API of the node.
        edits: makes the CDI edits of containers.
        refuse: raises CalabashError while the node makes no new grants.
        closed: returns the reason why the node must not publish devices; "" if it may.
    """

    def __init__(
        self,
        settings: AgentSettings,
        client: KubeClient,
        agent: NodeAgent,
        pods: NodePods,
        desk: ClaimDesk,
        *,
        api_watch: AllocationApiWatch,
        edits: ClaimEdits,
        refuse: Callable[[], None],
        closed: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._desk = desk
        self._api_watch = api_watch
        self._closed = closed
        self._reconciler = ClaimReconciler(client, agent, desk)
        clock = SystemClock()
        self._preparer = ClaimPreparer(
            agent,
            pods,
            desk,
            clock,
            fetch=lambda namespace, name: client.get(RESOURCE_CLAIM, name, namespace),
            edits=edits,
            rules=AllocationApiRules(settings.node, api_watch, refuse, self._reconciler),
            patience=Patience(
                clock=clock, leaving=lambda: desk.locks.any_ends() or pods.any_leaves(r.id for r in agent.records())
            ),
        )
        self._slices = SlicePublisher(client, settings.node)
        self._roots: dict[DeviceUuid, str] | None = None
        self._offers, self._told = False, ""
        self._server: DraServer | None = None

    def start(self) -> None:
        for left in self._desk.begin([record.id for record in self._agent.records()]):
            self._agent.end(left, reason="ended", explanation="nothing is noted of its claim", gently=True)
        self._reconciler.start()
        self._start_or_stop_server()

    def stop(self) -> None:
        """Stop publishing, serving and reconciling. Containers are not affected."""
        self._slices.stop()
        if self._server is not None:
            self._server.stop()
        self._reconciler.stop()

    @property
    def serves(self) -> bool:
        """Return True if the driver has a server for the kubelet: for new claims, or for prepared ones."""
        return self._server is not None

    @property
    def registered(self) -> bool:
        """Return True if the kubelet has registered the driver."""
        return self._server is not None and self._server.registered

    @property
    def registrations(self) -> int:
        return self._server.registrations if self._server is not None else 0

    @property
    def degraded(self) -> str | None:
        """Text about the devices that the API server could not store in full in ResourceSlices.

        It is "" if the API server stores all devices as published, and None if no devices are published.
        """
        return self._slices.degraded if self._offers else None

    def reconcile(self, snapshot: NodeSnapshot, *, refusal: CalabashError | None, driver: str) -> None:
        """Update the driver from the state of the node: device health, ResourceSlices, and the server for the kubelet.

        Called at every iteration of the agent's main loop.

        Args:
            snapshot: the devices and allocations of the node.
            refusal: the error with which new allocations are refused; None if they are granted.
            driver: version of the GPU driver.
        """
        self._start_or_stop_server()
        if self._server is not None:
            self._server.set_health(device_health(snapshot, self._settings.node))
        if self._roots is None:
            self._roots = pcie_roots([state.device for state in snapshot.devices], PciTree(self._settings.host))
        facts = SliceFacts(
            driver_version=driver,
            pcie_roots=self._roots,
            claimed=frozenset(a.record.id for a in snapshot.allocations if is_of_claim(a.record.id)),
            closed=(refusal.message if refusal is not None else "") or self._closed(),
        )
        self._offer(snapshot, facts)
        self._reconciler.follow({state.device.uuid: state.device.health for state in snapshot.devices})

    def _offer(self, snapshot: NodeSnapshot, facts: SliceFacts) -> None:
        """Publish the ResourceSlices, or withdraw them if the node no longer offers devices to claims.

        Called before claims are reconciled, so that schedulers learn of a device failure before users of claims do.
        """
        try:
            if self._api_watch.claims and (self.registered or self._offers):
                self._slices.publish(snapshot, facts)
                self._offers = True
            elif not self._api_watch.claims and self._offers:
                self._slices.withdraw()
                self._offers = False
            self._told = ""
        except CalabashError as error:
            if error.message != self._told:
                log.warning("cannot publish the ResourceSlices of the node", error=error.message)
            self._told = error.message

    def _start_or_stop_server(self) -> None:
        """Start the DRA server if the kubelet may call it for a claim; stop it otherwise.

        The kubelet may also call it to unprepare claims that were prepared before the allocation API changed.
        """
        if self._server is None and (self._api_watch.claims or self._desk.notes.all()):
            self._server = DraServer(
                DRIVER,
                self._preparer,
                plugins=self._settings.kubelet / "plugins",
                registry=self._settings.kubelet / "plugins_registry",
                on_error=lambda error: log.warning(str(error)),
            )
            self._server.start()
        elif self._server is not None and not self._api_watch.claims and not self._desk.notes.all():
            self._server.stop()
            self._server = None


def device_health(snapshot: NodeSnapshot, pool: str) -> list[DeviceHealth]:
    """Return the health of all devices that can be allocated to claims; a partition has the health of its card.

    Args:
        pool: name of the pool in ResourceSlices, which is the name of the node.
    """
    states = {state.device.uuid: state for state in snapshot.devices}
    return [
        DeviceHealth(
            pool=pool,
            device=one.name,
            state=DeviceState.UNHEALTHY if one.device.health in OUT_OF_SERVICE else DeviceState.HEALTHY,
            message=(redacted(states[one.device.uuid].cause) or one.device.health.value)
            if one.device.health in OUT_OF_SERVICE
            else "",
        )
        for one in claim_devices([state.device for state in snapshot.devices])
    ]
