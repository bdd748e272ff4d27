"""The API server: narrow objects, a client, and caches that are kept by list and watch.

What lives here: the shapes of the objects that the product uses (``objects``, ``groups``, ``resources``), the questions and
orders to an API server (``protocol``), the client (``client`` over ``transport``, credentials in ``config``), the API
server in memory that tests use (``memory``), and ``Mirror``. What never lives here: what an object means for a placement.
"""

from calabash.adapters.kube.errors import Expired, KubeError, UnreadableObject, is_final, status_of
from calabash.adapters.kube.http.client import HttpKubeClient, load_client
from calabash.adapters.kube.mirror.cache import MirrorChange, ObjectKey
from calabash.adapters.kube.mirror.interning import PodSharing
from calabash.adapters.kube.mirror.mirror import Mirror, unusable
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
