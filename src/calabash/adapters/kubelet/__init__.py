"""The kubelet of a node: the device plug-in and the driver of claims that it calls, who owns which token (pod-resources),
and its checkpoint.

What lives here: gRPC over Unix sockets with stubs generated from ``proto/`` (this is their only importer), registration in
both ways, and the strict reader of the kubelet's own file. What never lives here: what a token or a claim means.
"""

from calabash.adapters.kubelet.checkpoint import Checkpoint
from calabash.adapters.kubelet.dra import DraServer
from calabash.adapters.kubelet.podresources import PodResources
from calabash.adapters.kubelet.protocol import (
    Allocated,
    CheckpointEntry,
    ClaimHandler,
    ClaimRef,
    DeviceHealth,
    DeviceState,
    PluginDevice,
    PluginHandler,
    PreparedDevice,
    TokenOwner,
)
from calabash.adapters.kubelet.relay import PluginRelay
from calabash.adapters.kubelet.server import DevicePluginServer

__all__ = [
    "Allocated",
    "Checkpoint",
    "CheckpointEntry",
    "ClaimHandler",
    "ClaimRef",
    "DeviceHealth",
    "DevicePluginServer",
    "DeviceState",
    "DraServer",
    "PluginDevice",
    "PluginHandler",
    "PluginRelay",
    "PodResources",
    "PreparedDevice",
    "TokenOwner",
]
