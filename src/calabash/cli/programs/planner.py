"""``calabash serve planner``: the program that plans the devices of a cluster."""

from __future__ import annotations

import ipaddress

import click

from calabash.model.extras import require

_PORT = 7070


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="Kubeconfig file. Default: the service account of the pod."
)
@click.option(
    "--listen",
    default=f"127.0.0.1:{_PORT}",
    metavar="HOST:PORT",
    show_default=True,
    help="Loopback address at which kube-scheduler calls the planner.",
)
@click.option(
    "--namespace",
    default="calabash-system",
    show_default=True,
    metavar="NAME",
    help="Namespace of the Lease by which replicas elect a leader.",
)
@click.option("--identity", default="", metavar="NAME", help="Name of this replica; unique, random by default.")
@click.option(
    "--nominate-from",
    type=click.IntRange(0, 1_000_000),
    default=1000,
    show_default=True,
    metavar="NODES",
    help="Number of nodes from which pods are nominated to their node; in smaller clusters one write less is faster.",
)
@click.option(
    "--nominate-claims-from",
    type=click.IntRange(0, 1_000_000),
    default=10,
    show_default=True,
    metavar="NODES",
    help="The same for pods with claims, for which kube-scheduler has more work on each node.",
)
@click.option(
    "--status",
    default="",
    metavar="[HOST]:PORT",
    help="Address of /livez, /readyz and /metrics; default: none.",
)
@click.option(
    "--scheduler-lease",
    default="",
    metavar="LEASE",
    help="Lease of the kube-schedulers that run beside the replicas; the planner beside their leader is the leader.",
)
@click.option(
    "--handshake",
    type=click.Choice(["extender", "affinity"]),
    default="extender",
    show_default=True,
    help="extender: a kube-scheduler calls the planner; affinity: any kube-scheduler binds pods within node affinities that the"
    " planner writes.",
)
@click.option(
    "--moves",
    type=click.IntRange(0, 1000),
    default=8,
    show_default=True,
    metavar="PODS",
    help="Maximum number of movable pods that are being moved at a time to make room for others; 0: move no pods.",
)
@click.option(
    "--move-after",
    type=click.FloatRange(0, 86_400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Waiting time after which pods are moved to make room for a waiting pod.",
)
@click.option(
    "--move-interval",
    type=click.FloatRange(0, 86_400 * 30),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Minimum time that a pod stays on its node before it is moved.",
)
@click.option(
    "--half-life",
    default="0",
    show_default=True,
    metavar="DURATION",
    help="Half-life of past use in the shares of queues, 1m to 366d; 0: past use does not count.",
)
@click.option(
    "--topology-level",
    "topology_levels",
    multiple=True,
    metavar="LABEL",
    help="Node label that is a level of the network, for gangs that must be near each other; repeat, outermost first.",
)
@click.option(
    "--give-back-after",
    type=click.FloatRange(1, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time after which the plan of a pod that kube-scheduler refuses is withdrawn; the pod is planned again after growing"
    " delays.",
)
@click.option(
    "--system-namespace",
    "system_namespaces",
    multiple=True,
    default=("kube-system",),
    show_default=True,
    metavar="NAME",
    help="Namespace in which system priorities apply, besides the planner's own; repeat for several.",
)
@click.option(
    "--node-selector",
    "nodes",
    default="",
    metavar="SELECTOR",
    help="Nodes to plan: those of one pool, calabash.dev/pool=NAME, or of no pool, !calabash.dev/pool; default: all.",
)
def planner(
    *,
    kubeconfig: str,
    listen: str,
    namespace: str,
    identity: str,
    nominate_from: int,
    nominate_claims_from: int,
    status: str,
    scheduler_lease: str,
    handshake: str,
    moves: int,
    move_after: float,
    half_life: str,
    topology_levels: tuple[str, ...],
    move_interval: float,
    give_back_after: float,
    system_namespaces: tuple[str, ...],
    nodes: str,
) -> None:
    """Plan the devices of a cluster and serve its kube-scheduler.

    Chooses devices for pods, releases the pods to a stock kube-scheduler, and answers its filter, preempt and bind requests.
    Several replicas may run; one of them is the leader.
    """
    require("kubernetes")
    from calabash.adapters.kube import load_client  # noqa: PLC0415
    from calabash.kubernetes.objects.shards import Shard  # noqa: PLC0415
    from calabash.kubernetes.planner.run import run_planner  # noqa: PLC0415
    from calabash.kubernetes.planner.service import Handshake, PlannerSettings  # noqa: PLC0415
    from calabash.model.errors import CalabashError  # noqa: PLC0415
    from calabash.sched import check_levels, parse_half_life_s  # noqa: PLC0415

    check_levels(topology_levels)
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise CalabashError(f"{listen!r} is not HOST:PORT", hint=f"write 127.0.0.1:{_PORT}, for example")
    status_host, _, status_port = status.rpartition(":")
    if status and not (status_port.isdigit() and int(status_port) < 1 << 16):
        raise CalabashError(f"{status!r} is not [HOST]:PORT", hint="write :7071, for example")
    if not _is_loopback(host.strip("[]")):
        raise CalabashError(
            f"{listen!r} is not a loopback address",
            hint=f"every client that reaches the planner may bind pods: run kube-scheduler beside it, with 127.0.0.1:{_PORT}",
        )
    shard = Shard.from_selector(nodes)
    if handshake == Handshake.AFFINITY and not shard.everything:
        raise CalabashError(
            f"--node-selector {nodes} cannot be combined with --handshake affinity, "
            "with which one kube-scheduler serves all pods",
            hint="run a kube-scheduler beside each planner, with --handshake extender",
        )
    settings = PlannerSettings(
        host=host.strip("[]"),
        port=int(port),
        status_host=status_host.strip("[]"),
        status_port=int(status_port) if status else -1,
        namespace=namespace,
        identity=identity,
        nominate_nodes_min=nominate_from,
        nominate_claims_nodes_min=nominate_claims_from,
        scheduler_lease=scheduler_lease,
        handshake=Handshake(handshake),
        moves_at_once=moves,
        move_after_s=move_after,
        move_rest_s=move_interval,
        half_life_s=parse_half_life_s(half_life),
        topology_levels=topology_levels,
        refused_s=give_back_after,
        system_namespaces=system_namespaces,
        shard=shard,
    )
    run_planner(load_client(kubeconfig, connections=2 * settings.workers + 8, agent="calabash-planner"), settings)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
