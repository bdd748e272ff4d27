"""``calabash node``: maintain one node of a cluster, from the node itself."""

from __future__ import annotations

from pathlib import Path

import click

from calabash.model.errors import CalabashError, Reason

_PATH = click.Path(path_type=Path, file_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def node() -> None:
    """Maintain one node of a cluster, from the node itself."""


@node.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--home", type=_PATH, default=Path("/var/lib/calabash"), show_default=True, help="Home directory of the agent."
)
@click.option("--specs", type=_PATH, default=Path("/var/run/cdi"), show_default=True, help="Directory of CDI specs.")
@click.option(
    "--kubelet", type=_PATH, default=Path("/var/lib/kubelet"), show_default=True, help="The kubelet's root directory."
)
@click.option("--enter-host", is_flag=True, help="Use the host's mount namespace, from a privileged pod with hostPID.")
@click.option("--force", is_flag=True, help="Remove the files even while containers use slices.")
def purge(home: Path, specs: Path, kubelet: Path, *, enter_host: bool, force: bool) -> None:
    """Remove the files of an uninstalled agent from this node: slots, CDI specs, sockets and its home directory.

    Fails while the agent runs, and, unless --force is given, while containers use slices.
    """
    from calabash.adapters.host.mounts import enter_mount_namespace  # noqa: PLC0415
    from calabash.kubernetes.node_plugin.purge import purge as remove  # noqa: PLC0415

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
    done = remove(home, specs=specs, kubelet=kubelet, force=force)
    click.echo(f"removed: {done.mounts} mounts, {done.specs} CDI specs, {done.sockets} sockets")
    click.echo(f"{home}: {'removed' if done.home else 'emptied'}")
