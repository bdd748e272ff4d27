"""``calabash serve agent``: construct a node's agent from its components, start it, run its main loop and stop it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import structlog

import calabash
from calabash.adapters.clock import SystemClock
from calabash.adapters.gpu.library import (
    OWN_FILES,
    DriverFiles,
    forwarding_libraries,
    shim_library,
    simulated_environment,
    simulated_library_dir,
)
from calabash.adapters.gpu.protocol import DriverOptions, GpuDriver
from calabash.adapters.gpu.vendors import open_present
from calabash.adapters.host.calendar_steps import CalendarSteps
from calabash.adapters.host.cgroups.container_groups import ContainerHierarchy, find_container_hierarchy
from calabash.adapters.host.cgroups.device_access import find_device_hierarchy
from calabash.adapters.host.files import lock_exclusive
from calabash.adapters.host.processes import boot_id
from calabash.adapters.kube import KubeClient, Mirror, load_client
from calabash.adapters.kube.objects.resources import GPU_NODE, GpuNode, GpuNodeOutcome
from calabash.adapters.store import Store, open_store
from calabash.kubernetes.node_plugin.claims.prepared_files import ClaimNotes
from calabash.kubernetes.node_plugin.claims.resources import ClaimDesk
from calabash.kubernetes.node_plugin.claims.store import ClaimStore
from calabash.kubernetes.node_plugin.containers.edits import EditsMaker, NodeEdits
from calabash.kubernetes.node_plugin.containers.host_driver import (
    HostDriver,
    NoDriverError,
    find_driver,
    find_nvml,
    link_libraries,
    no_cards,
    programs_of,
    simulated_driver,
)
from calabash.kubernetes.node_plugin.containers.installed_files import install
from calabash.kubernetes.node_plugin.deleted_pods import DeletedPods, pod_exists
from calabash.kubernetes.node_plugin.devices.cordon import Cordon, bare
from calabash.kubernetes.node_plugin.devices.device_guard import EVERY_NAMESPACE, AgentNode, DeviceGuard, GuardSettings
from calabash.kubernetes.node_plugin.devices.maintenance import DeviceMaintenance
from calabash.kubernetes.node_plugin.devices.plugins import Plugins
from calabash.kubernetes.node_plugin.disk_space import DiskRoom
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.node_plugin.process_memory import HeapTrimmer
from calabash.kubernetes.node_plugin.reports.metrics import AgentFigures
from calabash.kubernetes.node_plugin.reports.node_events import NodeEvents
from calabash.kubernetes.node_plugin.reports.publish import NodeFacts, Publisher
from calabash.kubernetes.node_plugin.reports.readiness import Readiness
from calabash.kubernetes.node_plugin.reports.taint import StartupTaint
from calabash.kubernetes.node_plugin.reports.usage import UseReportLimit
from calabash.kubernetes.node_plugin.reports.usage_sender import UsageSending, UsageServer
from calabash.kubernetes.node_plugin.retention import ClaimTenure, NodeTenure, PodTenure
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.skipped_objects import SkippedObjects
from calabash.kubernetes.telemetry import serving
from calabash.model.device import NodeName
from calabash.model.errors import CalabashError, Reason
from calabash.node.agent import NodeAgent
from calabash.node.devices.settings import CardSettings
from calabash.node.membership.container import ContainerMembership, PodGroups
from calabash.node.slots.names import SlotNames
from calabash.node.snapshot import NodeSnapshot

TICK_S = 0.5
PARTING_S = 2.0  # limit for the last report when the API server does not answer
RETRY_S = 5.0
LOCK_WAIT_S = 30.0

log = structlog.get_logger(__name__)


class AgentService:
    """The agent of one node. If the driver is missing or broken, the agent reports the error and tries again."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._news = threading.Event()  # set when there is something to report, or to stop
        self._client: KubeClient = load_client(settings.kubeconfig or "")
        self._publisher = Publisher(self._client, settings.node, UseReportLimit(settings.use_every_s))
        self._events = NodeEvents(self._client, settings.node)
        self._skipped = SkippedObjects("calabash-agent")
        self._figures = AgentFigures()
        self._readiness = Readiness()
        self.metrics_address = ("", 0)
        self._taint = StartupTaint(self._client, settings.node)

    def stop(self) -> None:
        """Stop the agent; may be called from any thread or from a signal handler."""
        self._stop.set()
        self._news.set()

    def run(self) -> None:
        """Run until ``stop``. Raises CalabashError if another agent runs on the node or the metrics port is in use."""
        with _only_one(self._settings.home, self._stop), self._serving_metrics():
            while not self._stop.is_set():
                try:
                    with ExitStack() as stack:
                        self._serve(stack)
                except CalabashError as error:
                    self._failed(error)
                except OSError as error:  # a full or read-only file system
                    self._failed(CalabashError(f"the agent cannot work on this node: {error}"))

    @contextmanager
    def _serving_metrics(self) -> Iterator[None]:
        """Serve metrics and the probe while the agent runs, also while it cannot serve devices. Raises CalabashError."""
        port = self._settings.metrics_port
        if port is None:
            yield
            return
        server = self._figures.server(host="", port=port, fault=self._readiness.fault)
        with serving(server, port) as self.metrics_address:
            yield

    def _failed(self, error: CalabashError) -> None:
        """Report the error that prevents serving, and wait before the next attempt."""
        log.error("the agent cannot serve", reason=error.reason, error=error.message, hint=error.hint)
        if isinstance(error, NoDriverError):
            self._readiness.has_nothing_to_register()
        else:
            self._readiness.failed(error)
        facts, empty = self._facts(error=error, api=self._settings.allocation_api), _empty(self._settings.node)
        self._figures.observe(empty, ready=False)
        self._report(empty, NodePods(self._client, self._settings.node), facts, error)
        self._stop.wait(RETRY_S)

    def _serve(self, stack: ExitStack) -> None:
        settings = self._settings
        store = open_store(f"sqlite:///{settings.home / 'agent.db'}")
        stack.callback(store.close)
        drivers, files = self._drivers(stack)
        hierarchy = find_container_hierarchy()
        if hierarchy is None:
            raise CalabashError(
                "no cgroup file system is mounted in the agent's container", hint="mount the host's /sys/fs/cgroup"
            )
        host_driver = self._host_driver(drivers)
        if files.libraries is not None:
            link_libraries(host_driver, settings.host, files.libraries)
        desk = ClaimDesk(notes=ClaimNotes(settings.home / "claims"), store=ClaimStore(), specs=settings.specs)
        pods = NodePods(self._client, settings.node, observer=self._skipped, users=desk.store.users)
        names = SlotNames()
        calendar = CalendarSteps(settings.home / "calendar.json", boot=boot_id())
        membership = ContainerMembership(
            hierarchy, settings.home / "alloc", names=names, users=desk.store.users, calendar=calendar
        )
        agent = NodeAgent(
            home=settings.home,
            store=store,
            clock=SystemClock(),
            drivers=drivers,
            library=shim_library(),
            environment={} if settings.sim_state is None else simulated_environment(settings.sim_state),
            settings=CardSettings(spill_mib=settings.spill_mib, replicas=settings.replicas, interval=settings.interval),
            unmanaged_policy=settings.unmanaged_policy,
            node=settings.node,
            driver_files=files,
            membership=membership,
            mounted=True,
            retention=NodeTenure(PodTenure(pods, membership.sandbox_since_s), ClaimTenure(desk.store)),
            workers=settings.workers,
            names=names,
        )
        agent.administration.subscribe(self._news.set)
        agent.start()
        stack.callback(agent.stop)
        usage, room = _sending(stack, settings.usage, store), DiskRoom(settings.home)
        cards = DeviceMaintenance(
            agent.administration,
            lambda: [state.device for state in agent.devices()],
            settings.home / "orders.json",
            told=self._news.set,
        )
        own = self._own_node(cards)
        for watched in (pods, own):
            watched.start()
            stack.callback(watched.stop)
        plugins = Plugins(
            settings,
            self._client,
            agent,
            pods,
            membership,
            desk=desk,
            edits=self._edits(agent, host_driver),
            cordon=Cordon(own, settings.node),
            full=lambda: usage.full() or room.full(),
            granted=self._news.set,
        )
        stack.callback(plugins.stop)
        plugins.start()
        stack.callback(cards.stop)
        cards.start()
        guard = self._guard(agent, pods, hierarchy)
        deleted = DeletedPods(agent, pods, desk.store, lambda record: pod_exists(record, pods.fetch))
        heap = HeapTrimmer()
        version = ", ".join(d.driver_version() for d in drivers)
        while not self._stop.is_set():
            self._news.clear()
            calendar.observe()
            heap.trim(time.monotonic())
            if guard is not None and pods.synced:
                guard.reconcile()
            deleted.reconcile(time.monotonic())
            snapshot = agent.snapshot()
            refusal = plugins.reconcile(snapshot, version)
            facts = replace(
                self._facts(driver=version, error=refusal, orders=cards.outcomes(), api=plugins.allocation_api),
                claims=plugins.claims_degraded,
            )
            starting = refusal is None and not plugins.followed
            self._report(snapshot, pods, _starting(facts) if starting else facts, refusal)
            self._figures.observe(
                snapshot,
                ready=refusal is None and not starting,
                registrations=plugins.registrations,
                waiting=usage.waiting,
            )
            self._registered(plugins, refusal)
            self._news.wait(TICK_S)
        self._part(
            agent.snapshot(), pods, self._facts(driver=version, orders=cards.outcomes(), api=plugins.allocation_api)
        )

    def _drivers(self, stack: ExitStack) -> tuple[tuple[GpuDriver, ...], DriverFiles]:
        """Open the GPU drivers of the node and locate their files. Raises CalabashError if the node has no device."""
        settings = self._settings
        nvml = None if settings.sim_state else find_nvml(settings.host, root=settings.driver_root)
        files = OWN_FILES
        if settings.sim_state is None:
            files = programs_of(settings.host, settings.home / "driver", root=settings.driver_root)
        drivers = open_present(DriverOptions(sim_state=settings.sim_state, library=nvml, files=files))
        for driver in drivers:
            stack.callback(driver.close)
        if not any(driver.devices() for driver in drivers):
            raise no_cards(settings, nvml)
        return drivers, files

    def _guard(self, agent: NodeAgent, pods: NodePods, hierarchy: ContainerHierarchy) -> DeviceGuard | None:
        """Return the guard of device access; None if it is switched off or no cgroup hierarchy can control devices."""
        settings, devices = self._settings, find_device_hierarchy()
        if devices is None or EVERY_NAMESPACE in settings.unguarded:
            return None
        guard = GuardSettings(hierarchy=devices, groups=hierarchy.directory, exempt=settings.unguarded)
        groups = PodGroups(hierarchy, time.monotonic)
        return DeviceGuard(guard, AgentNode(agent, pods, groups, settings.host))

    def _own_node(self, cards: DeviceMaintenance) -> Mirror[GpuNode]:
        """Return the mirror of the node's own ``GpuNode``, which contains orders for its devices."""
        return Mirror(
            self._client,
            GPU_NODE,
            on_change=cards.changed,
            observer=self._skipped,
            keep=bare,
            field_selector=f"metadata.name={self._settings.node}",
        )

    def _edits(self, agent: NodeAgent, driver: HostDriver) -> NodeEdits:
        installed = self._installed
        maker = EditsMaker(
            shim=install(shim_library(), installed),
            preload=installed / "ld.so.preload",
            driver=driver,
            forwarding=tuple(install(f, installed) for f in forwarding_libraries()),
        )
        return NodeEdits(maker, self._settings.host, lambda: [state.device for state in agent.devices()])

    @property
    def _installed(self) -> Path:
        """Directory of the files that are mounted into containers of tenants."""
        return self._settings.home / "lib"

    def _host_driver(self, drivers: tuple[GpuDriver, ...]) -> HostDriver:
        settings, installed = self._settings, self._installed
        if settings.sim_state is None:
            return find_driver(settings.host, drivers[0].driver_version(), root=settings.driver_root)
        pair = simulated_driver(simulated_library_dir(), settings.sim_state)
        return HostDriver(libraries=tuple(install(f, installed) for f in pair.libraries), state=pair.state)

    def _facts(
        self,
        *,
        driver: str = "",
        error: CalabashError | None = None,
        orders: Mapping[str, GpuNodeOutcome] | None = None,
        api: AllocationApi,
    ) -> NodeFacts:
        return NodeFacts(
            agent_version=calabash.__version__,
            driver_version=driver,
            ready=error is None,
            reason="Serving" if error is None else error.reason.value,
            message="" if error is None else str(error),
            orders=orders or {},
            allocation_api=api,
        )

    def _report(self, snapshot: NodeSnapshot, pods: NodePods, facts: NodeFacts, error: CalabashError | None) -> None:
        try:
            self._publisher.publish(snapshot, pods, facts)
            self._events.report_state(error)
        except CalabashError as failed:
            log.warning("cannot report the state of the node", error=failed.message)

    def _registered(self, plugins: Plugins, refusal: CalabashError | None) -> None:
        """Update the readiness, and remove the startup taint when the node grants allocations."""
        self._readiness.serves(plugins.unregistered())
        if refusal is None and plugins.registered:
            self._taint.reconcile(plugins.registrations, time.monotonic())

    def _part(self, snapshot: NodeSnapshot, pods: NodePods, facts: NodeFacts) -> None:
        """Report that the node is not ready, because the agent stops and the kubelet then refuses pods with devices."""
        message = "the agent of this node is being stopped; running programs are not affected"
        last = Publisher(self._client.within(PARTING_S), self._settings.node)
        try:
            last.publish(snapshot, pods, replace(facts, ready=False, reason="Stopping", message=message))
        except CalabashError as failed:
            log.warning("cannot report that the agent is being stopped", error=failed.message)


def _sending(stack: ExitStack, server: UsageServer | None, store: Store) -> UsageSending:
    """Start the thread that sends usage records."""
    usage = UsageSending.to(server, store.outbox)
    stack.callback(usage.stop)
    usage.start()
    return usage


def _starting(facts: NodeFacts) -> NodeFacts:
    """Return the facts of a node that is not ready because its kubelet has not registered the devices yet."""
    return replace(
        facts, ready=False, reason="Starting", message="the kubelet of this node has not registered the devices yet"
    )


def _empty(node: str) -> NodeSnapshot:
    return NodeSnapshot(node=NodeName(node), devices=(), allocations=(), membership="kernel", slots="tmpfs")


@contextmanager
def _only_one(home: Path, stop: threading.Event) -> Iterator[None]:
    """Hold the lock of the agent's directory. Raises CalabashError if it is not free after ``LOCK_WAIT_S`` seconds."""
    until = time.monotonic() + LOCK_WAIT_S
    try:
        home.mkdir(mode=0o711, parents=True, exist_ok=True)
        home.chmod(0o711)
        lock = lock_exclusive(home / "agent.lock")
        while lock is None and time.monotonic() < until and not stop.wait(TICK_S):
            lock = lock_exclusive(home / "agent.lock")
    except OSError as error:
        raise CalabashError(f"cannot use {home}: {error.strerror}", reason=Reason.NOT_PERMITTED) from error
    if lock is None:
        raise CalabashError(
            f"another agent uses {home}", reason=Reason.CONFLICT, hint="stop the other agent; only one can serve a node"
        )
    try:
        yield
    finally:
        os.close(lock)
