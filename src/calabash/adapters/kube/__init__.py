"""Access to the Kubernetes API server: object types, a client, and caches kept by list and watch.

The package ``objects`` has the types of objects with the fields that the product uses, ``protocol`` the interface of a
client, ``http`` the client over HTTP with its credentials, and ``mirror`` the caches. This package does not interpret
objects: their meaning for placement is decided in other packages.
"""

from calabash.adapters.kube.errors import Expired, KubeError, UnreadableObject, is_final, status_of
from calabash.adapters.kube.http.client import HttpKubeClient, load_client
from calabash.adapters.kube.mirror.cache import MirrorChange, ObjectKey
from calabash.adapters.kube.mirror.interning import PodSharing
from calabash.adapters.kube.mirror.mirror import Mirror, MirrorObserver, unusable
from calabash.adapters.kube.mirror.widening import WideningMirror
from calabash.adapters.kube.objects.meta import Kind, KubeStruct, ObjectMeta
from calabash.adapters.kube.protocol import (
    Evicted,
    EvictedAs,
    KubeClient,
    Listing,
    PatchBody,
    PatchStyle,
    SkippedObject,
    Watch,
    WatchEvent,
    WatchEventType,
)

__all__ = [
    "Evicted",
    "EvictedAs",
    "Expired",
    "HttpKubeClient",
    "Kind",
    "KubeClient",
    "KubeError",
    "KubeStruct",
    "Listing",
    "Mirror",
    "MirrorChange",
    "MirrorObserver",
    "ObjectKey",
    "ObjectMeta",
    "PatchBody",
    "PatchStyle",
    "PodSharing",
    "SkippedObject",
    "UnreadableObject",
    "Watch",
    "WatchEvent",
    "WatchEventType",
    "WideningMirror",
    "is_final",
    "load_client",
    "status_of",
    "unusable",
]
