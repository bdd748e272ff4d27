"""``calabash net``: group of the network commands; each command's module is imported only when it runs."""

from __future__ import annotations

import click

from calabash.cli.lazy import LazyGroup

# name -> (module:attribute, one-line help). The help stands here so that listing imports nothing.
_COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("net.lab:up", "Start a lab network in namespaces of this machine."),
    "down": ("net.lab:down", "Stop and delete a lab network."),
    "status": ("net.lab:status", "Show the lab networks of this machine and their daemons."),
    "doctor": ("net.doctor:doctor", "Check the requirements of networks."),
    "check": ("net.check:check", "Test the connectivity rules of a VPC with packets."),
    "ctl": ("net.lab:ctl", "Run a program of OVN or Open vSwitch on a lab network."),
    "apply": ("net.files:apply", "Create and change network objects from files."),
    "diff": ("net.files:diff", "Show the changes that applying files would make."),
    "render": ("net.render:render", "Print the networks as objects of Kube-OVN."),
    "fabric": ("net.fabric:fabric", "Isolate tenants on RDMA fabrics."),
}


@click.group(cls=LazyGroup, lazily=_COMMANDS)
def net() -> None:
    """Start and check the network of tenants' VPCs, and apply manifests."""
