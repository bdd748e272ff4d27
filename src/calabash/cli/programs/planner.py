"""``calabash planner``: plans a cluster's devices, as a program."""

from __future__ import annotations

import ipaddress

import click

_PORT = 7070


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="File that says where the API server is; in a pod not needed."
)
@click.option(
    "--listen",
    default=f"127.0.0.1:{_PORT}",
    metavar="HOST:PORT",
    show_default=True,
    help="Where kube-scheduler asks: a loopback address.",
)
@click.option(
    "--namespace", default="calabash-system", show_default=True, help="Namespace of the lease by which replicas agree."
)
@click.option("--identity", default="", metavar="NAME", help="Name of this replica; unique, random by default.")
@click.option(
    "--nominate-from",
    type=click.IntRange(0, 1_000_000),
    default=1000,
    show_default=True,
    metavar="NODES",
    help="Nominate pods where the cluster has so many nodes; with fewer, one write less is quicker.",
)
@click.option(
    "--nominate-claims-from",
    type=click.IntRange(0, 1_000_000),
    default=10,
    show_default=True,
    metavar="NODES",
    help="The same for pods with claims, for which kube-scheduler does more on each node.",
)
@click.option(
    "--status",
    default="",
    metavar="[HOST]:PORT",
    help="Answer /livez, /readyz and /metrics there; default: nowhere.",
)
@click.option(
    "--beside",
    default="",
    metavar="LEASE",
    help="Lead together with the kube-scheduler in this replica's pod, whose replicas agree by this lease.",
)
@click.option(
    "--handshake",
    type=click.Choice(["extender", "affinity"]),
    default="extender",
    show_default=True,
    help="Who gives pods their nodes: a kube-scheduler that asks here, or any, within a few nodes that are named to it.",
)
@click.option(
    "--moves",
    type=click.IntRange(0, 1000),
    default=8,
    show_default=True,
    metavar="PODS",
    help="Pods that may be on the move at a time to make room for others, of those that say they are movable; 0: none.",
)
@click.option(
    "--move-after",
    type=click.FloatRange(0, 86_400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Others are moved only for a pod that has waited this long.",
)
@click.option(
    "--move-rest",
    type=click.FloatRange(0, 86_400 * 30),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="No pod is moved that has not been where it is this long.",
)
@click.option(
    "--give-back-after",
    type=click.FloatRange(1, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="A plan whose pod kube-scheduler refuses for this long is given back; the pod is planned again after growing delays.",
)
@click.option(
    "--system-namespace",
    "system_namespaces",
    multiple=True,
    default=("kube-system",),
    show_default=True,
    metavar="NAME",
    help="A namespace in which priorities of the system count, beside the planner's own; may be given several times.",
)
@click.option(
    "--nodes",
    default="",
    metavar="SELECTOR",
    help="Plan the nodes of one pool, calabash.dev/pool=NAME, or those of none, !calabash.dev/pool; default: all.",
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
    beside: str,
    handshake: str,
    moves: int,
    move_after: float,
    move_rest: float,
    give_back_after: float,
    system_namespaces: tuple[str, ...],
    nodes: str,
) -> None:
    """Plan a cluster's devices and answer its kube-scheduler.

    Gives pods their devices, releases them to a stock kube-scheduler, and answers its filter, preempt and bind questions.
    Several may run; one leads.
    """
    from calabash.adapters.kube import load_client  # noqa: PLC0415
    from calabash.kubernetes.objects.shards import Shard  # noqa: PLC0415
    from calabash.kubernetes.planner.run import run_planner  # noqa: PLC0415
    from calabash.kubernetes.planner.service import Handshake, PlannerSettings  # noqa: PLC0415
    from calabash.model.errors import CalabashError  # noqa: PLC0415

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise CalabashError(f"{listen!r} is not HOST:PORT", hint=f"127.0.0.1:{_PORT} for example")
    status_host, _, status_port = status.rpartition(":")
    if status and not (status_port.isdigit() and int(status_port) < 1 << 16):
        raise CalabashError(f"{status!r} is not [HOST]:PORT", hint=":7071 for example")
    if not _is_loopback(host.strip("[]")):
        raise CalabashError(
            f"{listen!r} is not an address of the loopback",
            hint=f"every client that reaches it may bind pods: let kube-scheduler run beside it and ask 127.0.0.1:{_PORT}",
        )
    shard = Shard.from_selector(nodes)
    if handshake == Handshake.AFFINITY and not shard.everything:
        raise CalabashError(
            f"--nodes {nodes} with --handshake affinity: the cluster's own kube-scheduler serves all pods alike",
            hint="let a kube-scheduler run beside each planner: --handshake extender",
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
        scheduler_lease=beside,
        handshake=Handshake(handshake),
        moves_at_once=moves,
        move_after_s=move_after,
        move_rest_s=move_rest,
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
