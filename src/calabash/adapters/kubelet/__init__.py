"""Access to the kubelet of a node: device plug-in, claim driver (DRA), pod-resources, and the kubelet's checkpoint.

gRPC over Unix sockets is used here only, with stubs generated from ``proto/``. The meaning of a device ID or a claim is
decided elsewhere.
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
