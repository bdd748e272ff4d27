"""The agent's interfaces to the kubelet: two device plug-ins and the DRA driver.

The device plug-ins are for ``calabash.dev/gpus`` and, if the settings say so, for ``nvidia.com/gpu``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from calabash.adapters.clock import SystemClock
from calabash.adapters.kube import KubeClient
from calabash.adapters.kubelet import Checkpoint, DevicePluginServer, PodResources
from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.node_plugin.allocation_api import AllocationApiWatch
from calabash.kubernetes.node_plugin.claims.driver import ClaimDriver
from calabash.kubernetes.node_plugin.claims.resources import ClaimDesk
from calabash.kubernetes.node_plugin.containers.device_id_owners import Owners
from calabash.kubernetes.node_plugin.containers.edits import NodeEdits
from calabash.kubernetes.node_plugin.containers.prepare import Preparer
from calabash.kubernetes.node_plugin.containers.slice_choice import ByPlan, Placing
from calabash.kubernetes.node_plugin.containers.specs import SlotSpecs
from calabash.kubernetes.node_plugin.devices.device_id_health import HeldTokens, held_tokens
from calabash.kubernetes.node_plugin.devices.nvidia_plugin import NvidiaNames
from calabash.kubernetes.node_plugin.devices.offering import GrantGate
from calabash.kubernetes.node_plugin.devices.other_plugins import ForeignPlugins
from calabash.kubernetes.node_plugin.devices.whole_devices import WholeCards
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import GPUS
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.node.agent import NodeAgent
from calabash.node.membership.container import ContainerMembership, is_of_claim
from calabash.node.snapshot import NodeSnapshot

log = structlog.get_logger(__name__)


class Plugins:
    """Construct, start and update the device plug-ins and the DRA driver of a node.

    Args:
        settings: settings of the agent.
        client: client of the API server.
        agent: grants and ends allocations on the node.
        pods: the pods of the node.
        membership: finds the sandboxes and cgroups of pods.
        desk: files and store of the node's claims.
        edits: makes the CDI edits of containers.
        closed: returns the reason why the node publishes no devices to claims and gives no whole device under NVIDIA's
            resource name; "" if it does both.
        full: returns the error with which allocations are refused while usage cannot be recorded; None if it can.
        granted: called after a grant that the planner did not plan.
    """

    def __init__(
        self,
        settings: AgentSettings,
        client: KubeClient,
        agent: NodeAgent,
        pods: NodePods,
        membership: ContainerMembership,
        *,
        desk: ClaimDesk,
        edits: NodeEdits,
        closed: Callable[[], str],
        full: Callable[[], CalabashError | None],
        granted: Callable[[], None],
    ) -> None:
        self._directory = settings.device_plugins
        self._agent = agent
        self._pods = pods
        self._membership = membership
        self._edits = edits
        self._checkpoint = Checkpoint(settings.kubelet / "device-plugins" / "kubelet_internal_checkpoint")
        self._resources = PodResources(settings.kubelet / "pod-resources" / "kubelet.sock")
        served = (GPUS, GPU) if settings.serve_nvidia_names else (GPUS,)
        self._specs = SlotSpecs(
            settings.specs, lambda: [e for e in self._checkpoint.read(*served) if pods.may_start(e.pod_uid)]
        )
        self._foreign = ForeignPlugins(self._checkpoint.registered, self._resources.offered)
        self._gate = GrantGate(
            self._foreign,
            lambda: self._checkpoint.read(GPUS),
            agent.record,
            agent.administration.unhealthy_partitions,
            full,
            apart=self._apart,
        )
        self._api_watch = AllocationApiWatch(client, settings.node, settings.allocation_api)
        self._claims = ClaimDriver(
            settings,
            client,
            agent,
            pods,
            desk,
            api_watch=self._api_watch,
            edits=edits,
            refuse=self._gate.require,
            closed=closed,
        )
        by_plan = ByPlan(pods, agent.node)
        self._plugin = self._server(GPUS, by_plan)
        self._followed = False
        self._nvidia: NvidiaNames | None = None
        if settings.serve_nvidia_names:
            cards = WholeCards(agent, pods, by_plan, closed=closed)
            self._nvidia = NvidiaNames(
                lambda: self._server(GPU, cards, granted), lambda: self._held(GPU), lambda: len(cards.spare())
            )

    def start(self) -> None:
        self._api_watch.poll(time.monotonic())
        self._gate.poll(time.monotonic())
        self._gate.report([state.device for state in self._agent.devices()], self._plugin.set_devices)
        self._plugin.start()
        self._claims.start()

    def stop(self) -> None:
        """Stop all servers. Containers are not affected."""
        if self._nvidia is not None:
            self._nvidia.stop()
        self._plugin.stop()
        self._claims.stop()
        self._resources.close()

    @property
    def registered(self) -> bool:
        """Return True if the kubelet has registered the node's devices, by the node's current allocation API."""
        return self._claims.registered if self._api_watch.claims else self._plugin.registered

    @property
    def followed(self) -> bool:
        """Return True if the kubelet has registered the node's devices at any time since the agent started."""
        return self._followed

    @property
    def registrations(self) -> int:
        return self._plugin.registrations + self._claims.registrations

    @property
    def allocation_api(self) -> AllocationApi:
        """The allocation API of the node."""
        return self._api_watch.allocation_api

    @property
    def claims_degraded(self) -> str | None:
        """Text about devices that cannot be published to claims in full; see ``ClaimDriver.degraded``."""
        return self._claims.degraded

    def reconcile(self, snapshot: NodeSnapshot, driver: str) -> CalabashError | None:
        """Update all interfaces from the state of the node. Called at every iteration of the agent's main loop.

        Args:
            snapshot: the devices and allocations of the node.
            driver: version of the GPU driver.

        Returns:
            The error with which new allocations are refused; None if they are granted.
        """
        self._api_watch.poll(time.monotonic())
        refusal = self._gate.poll(time.monotonic())
        self._gate.report([state.device for state in snapshot.devices], self._plugin.set_devices)
        if self._nvidia is not None and self._pods.synced:
            gives = refusal is None and not self._api_watch.claims
            self._nvidia.reconcile(snapshot.devices, gives=gives, disputed=self._foreign.offer(GPU))
        self._specs.sweep()
        self._claims.reconcile(snapshot, refusal=refusal, driver=driver)
        self._followed |= self.registered
        return refusal

    def _server(
        self, resource: str, placing: Placing, prepared: Callable[[], None] = lambda: None
    ) -> DevicePluginServer:
        owners = Owners(
            lambda: self._checkpoint.read(resource), lambda: self._resources.list(resource), resource=resource
        )
        preparer = Preparer(
            self._agent,
            owners,
            SystemClock(),
            placing=placing,
            edits=self._edits.for_grant,
            specs=self._specs,
            since_s=self._membership.sandbox_since_s,
            sandbox=self._membership.sandbox,
            refuse=self._refuse,
            prepared=prepared,
            leaving=self._pods.any_leaves,
        )
        return DevicePluginServer(
            resource, preparer, directory=self._directory, on_error=lambda error: log.warning(str(error))
        )

    def _refuse(self) -> None:
        """Raise the CalabashError with which new allocations by device IDs are refused; return if they are granted."""
        self._gate.require()
        if self._api_watch.claims:
            raise CalabashError(
                "the devices of this node are offered to claims, not by device plug-ins",
                reason=Reason.CONFLICT,
                hint="delete the pod, its controller creates it again; the node's label calabash.dev/door selects the"
                " allocation API",
            )

    def _apart(self) -> frozenset[DeviceUuid]:
        """Return the devices that are not offered by device IDs."""
        states = self._agent.devices()
        claims = self._api_watch.claims
        return frozenset(s.device.uuid for s in states if claims or any(map(is_of_claim, s.allocations)))

    def _held(self, resource: str) -> list[HeldTokens]:
        """Return the device IDs of a resource that are held by pods which may still start containers.

        The checkpoint also contains ended pods, because the kubelet removes them only when it admits the next pod.
        """
        entries = [e for e in self._checkpoint.read(resource) if self._pods.may_start(e.pod_uid)]
        return held_tokens(entries, self._agent.record)
