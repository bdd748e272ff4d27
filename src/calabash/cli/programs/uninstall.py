"""``calabash uninstall``: remove what Calabash left on a node or in a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from calabash.model.errors import CalabashError, Reason
from calabash.model.extras import require

_PATH = click.Path(path_type=Path, file_okay=False)
_WAITING_SHOWN_MAX = 50


@click.group()
def uninstall() -> None:
    """Remove what Calabash left on a node or in a cluster after the chart was uninstalled."""


@uninstall.command("node")
@click.option(
    "--home", type=_PATH, default=Path("/var/lib/calabash"), show_default=True, help="Home directory of the agent."
)
@click.option("--specs", type=_PATH, default=Path("/var/run/cdi"), show_default=True, help="Directory of CDI specs.")
@click.option(
    "--kubelet", type=_PATH, default=Path("/var/lib/kubelet"), show_default=True, help="The kubelet's root directory."
)
@click.option("--enter-host", is_flag=True, help="Use the host's mount namespace, from a privileged pod with hostPID.")
@click.option("--force", is_flag=True, help="Remove the files even while containers use slices.")
def uninstall_node(home: Path, specs: Path, kubelet: Path, *, enter_host: bool, force: bool) -> None:
    """Remove the files of an uninstalled agent from this node: slots, CDI specs, sockets and its home directory.

    Fails while the agent runs, and, unless --force is given, while containers use slices.
    """
    from calabash.adapters.host.mounts import enter_mount_namespace  # noqa: PLC0415
    from calabash.kubernetes.node_plugin.purge import purge  # noqa: PLC0415

    for path in (home, specs, kubelet):
        if not path.is_absolute():
            raise CalabashError(
                f"{path} is a relative path", reason=Reason.BAD_REQUEST, hint="give absolute paths of the directories"
            )
    if enter_host:
        try:
            enter_mount_namespace(1)
        except OSError as error:
            raise CalabashError(
                f"cannot enter the host's mount namespace: {error.strerror}",
                reason=Reason.NOT_PERMITTED,
                hint="the pod must be privileged and have hostPID: true",
            ) from error
    done = purge(home, specs=specs, kubelet=kubelet, force=force)
    click.echo(f"removed: {done.mounts} mounts, {done.specs} CDI specs, {done.sockets} sockets")
    click.echo(f"{home}: {'removed' if done.home else 'emptied'}")


@uninstall.command("cluster")
@click.option(
    "--kubeconfig", default="", metavar="FILE", help="Kubeconfig file. Default: the service account of the pod."
)
@click.option(
    "--namespace", default="calabash-system", show_default=True, metavar="NAME", help="Namespace of the release."
)
def uninstall_cluster(kubeconfig: str, namespace: str) -> None:
    """Remove the objects that components left in the API server after the chart was uninstalled.

    Deletes their Leases and ResourceSlices, removes their finalizers, and lists the pods that wait at the scheduling gate.
    """
    require("kubernetes")
    from calabash.adapters.kube import load_client  # noqa: PLC0415
    from calabash.kubernetes.cleanup import clean_up  # noqa: PLC0415

    report = clean_up(load_client(kubeconfig, agent="calabash-cleanup"), namespace)
    click.echo(f"deleted: {report.leases} leases, {report.slices} resource slices")
    click.echo(f"finalizers removed: {report.finalizers} objects")
    click.echo(f"pods waiting at the scheduling gate: {len(report.waiting)}")
    for name in report.waiting[:_WAITING_SHOWN_MAX]:
        click.echo(f"  {name}")
    if len(report.waiting) > _WAITING_SHOWN_MAX:
        click.echo(f"  and {len(report.waiting) - _WAITING_SHOWN_MAX} more")
    if report.waiting:
        click.echo("hint: delete these pods, or install calabash again")
    if report.failures:
        raise CalabashError(
            f"the cleanup is incomplete: {'; '.join(report.failures)}",
            reason=Reason.CONFLICT,
            hint="run `calabash uninstall cluster` again as an administrator of the cluster",
        )
