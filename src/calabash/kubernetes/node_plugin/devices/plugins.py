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
from calabash.adapters.kubelet.protocol import CheckpointEntry
from calabash.kubernetes.dialects.nvidia import GPU
from calabash.kubernetes.node_plugin.allocation_api import AllocationApiWatch
from calabash.kubernetes.node_plugin.claims.driver import ClaimDriver
from calabash.kubernetes.node_plugin.claims.resources import ClaimDesk
from calabash.kubernetes.node_plugin.containers.device_id_owners import Owners
from calabash.kubernetes.node_plugin.containers.edits import NodeEdits
from calabash.kubernetes.node_plugin.containers.prepare import Preparer
from calabash.kubernetes.node_plugin.containers.retry import Patience
from calabash.kubernetes.node_plugin.containers.slice_choice import ByPlan, Placing
from calabash.kubernetes.node_plugin.containers.specs import SlotSpecs
from calabash.kubernetes.node_plugin.devices.cordon import Cordon
from calabash.kubernetes.node_plugin.devices.device_id_health import HeldTokens, Parts, held_tokens
from calabash.kubernetes.node_plugin.devices.nvidia_plugin import NvidiaNames
from calabash.kubernetes.node_plugin.devices.offering import GrantGate
from calabash.kubernetes.node_plugin.devices.other_plugins import ForeignPlugins
from calabash.kubernetes.node_plugin.devices.whole_devices import WholeCards
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.names import GPUS
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.agent import NodeAgent
from calabash.node.membership.container import ContainerMembership, is_of_claim
from calabash.node.snapshot import NodeSnapshot

log = structlog.get_logger(__name__)


class _OfferedNode:
    """The node whose device IDs are offered; implements ``offering.OfferedNode``.

    Args:
        agent: grants and ends allocations on the node.
        checkpoint: the kubelet's checkpoint.
        api_watch: the allocation API of the node.
        full: see ``Plugins``.
    """

    def __init__(
        self,
        agent: NodeAgent,
        checkpoint: Checkpoint,
        api_watch: AllocationApiWatch,
        full: Callable[[], CalabashError | None],
    ) -> None:
        self._agent, self._checkpoint, self._api_watch = agent, checkpoint, api_watch
        self._full = full

    def entries(self) -> tuple[CheckpointEntry, ...]:
        return self._checkpoint.read(GPUS)

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        return self._agent.record(allocation)

    def unhealthy_partitions(self) -> Parts:
        return self._agent.administration.unhealthy_partitions()

    def full(self) -> CalabashError | None:
        return self._full()

    def devices_apart(self) -> frozenset[DeviceUuid]:
        states, claims = self._agent.devices(), self._api_watch.claims
        return frozenset(s.device.uuid for s in states if claims or any(map(is_of_claim, s.allocations)))


class _WholeDeviceUse:
    """The use of whole devices on the node; implements ``nvidia_plugin.WholeDeviceUse``."""

    def __init__(self, agent: NodeAgent, checkpoint: Checkpoint, pods: NodePods, cards: WholeCards) -> None:
        self._agent, self._checkpoint, self._pods, self._cards = agent, checkpoint, pods, cards

    def held(self) -> list[HeldTokens]:
        """Return the device IDs that are held by pods which may still start containers.

        The checkpoint also contains ended pods, because the kubelet removes them only when it admits the next pod.
        """
        entries = [e for e in self._checkpoint.read(GPU) if self._pods.may_start(e.pod_uid)]
        return held_tokens(entries, self._agent.record)

    def spare(self) -> int:
        return len(self._cards.spare())


class DeviceIdRules:
    """Refuses grants by device IDs while the node makes none; implements ``prepare.GrantRules`` for one resource.

    Args:
        gate: decides whether the node makes new grants.
        api_watch: the allocation API of the node.
        prepared: called after the spec of a container was written.
    """

    def __init__(self, gate: GrantGate, api_watch: AllocationApiWatch, prepared: Callable[[], None]) -> None:
        self._gate, self._api_watch, self._prepared = gate, api_watch, prepared

    def require(self) -> None:
        """Return if the node makes new grants by device IDs. Raises CalabashError if it makes none."""
        self._gate.require()
        if self._api_watch.claims:
            raise CalabashError(
                "the devices of this node are offered to claims, not by device plug-ins",
                reason=Reason.CONFLICT,
                hint="delete the pod, its controller creates it again; the node's label calabash.dev/door selects the"
                " allocation API",
            )

    def prepared(self) -> None:
        self._prepared()


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
        cordon: while the devices are cordoned, none is published to claims or given whole under NVIDIA's resource name.
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
        cordon: Cordon,
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
        self._api_watch = AllocationApiWatch(client, settings.node, settings.allocation_api)
        self._foreign = ForeignPlugins(self._checkpoint.registered, self._resources.offered)
        self._gate = GrantGate(
            self._foreign,
            _OfferedNode(agent, self._checkpoint, self._api_watch, full),
        )
        self._claims = ClaimDriver(
            settings,
            client,
            agent,
            pods,
            desk,
            api_watch=self._api_watch,
            edits=edits,
            refuse=self._gate.require,
            closed=cordon.closed_reason,
        )
        by_plan = ByPlan(pods, agent.node)
        self._plugin = self._server(GPUS, by_plan)
        self._followed = False
        self._nvidia: NvidiaNames | None = None
        if settings.serve_nvidia_names:
            cards = WholeCards(agent, pods, by_plan, closed=cordon.closed_reason)
            self._nvidia = NvidiaNames(
                lambda: self._server(GPU, cards, granted), _WholeDeviceUse(agent, self._checkpoint, pods, cards)
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

    def unregistered(self) -> list[str]:
        """Return the names of the served interfaces that the kubelet has not registered."""
        served = {"device plug-in": self._plugin.registered}
        if self._claims.serves:
            served["DRA plug-in"] = self._claims.registered
        return [name for name, registered in served.items() if not registered]

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
        clock = SystemClock()
        owners = Owners(
            lambda: self._checkpoint.read(resource), lambda: self._resources.list(resource), resource=resource
        )
        preparer = Preparer(
            self._agent,
            owners,
            clock,
            placing=placing,
            edits=self._edits,
            specs=self._specs,
            sandboxes=self._membership,
            rules=DeviceIdRules(self._gate, self._api_watch, prepared),
            patience=Patience(clock=clock, leaving=lambda: self._pods.any_leaves(r.id for r in self._agent.records())),
        )
        return DevicePluginServer(
            resource, preparer, directory=self._directory, on_error=lambda error: log.warning(str(error))
        )
