"""Authentication of node agents by service account tokens.

The API server issues the token of an agent's pod and writes the node of the pod into it. A TokenReview of the API
server returns the service account and the node of a token. Results are cached for a short time by the digest of the
token, so that frequent requests need few reviews.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from calabash.adapters.kube import Kind, KubeClient, KubeStruct, ObjectMeta
from calabash.api.collected import AUDIENCE
from calabash.model.errors import CalabashError, Reason

NODE_CLAIM = "authentication.kubernetes.io/node-name"
REMEMBERED_S = 60.0
REFUSED_S = 5.0
_REMEMBERED_MAX = 10_000
_TOKEN_CHARACTERS_MAX = 16 << 10


class TokenReviewUser(KubeStruct, frozen=True):
    """The user of a token; ``extra`` contains the node of the pod for which the token was issued."""

    username: str = ""
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class TokenReviewStatus(KubeStruct, frozen=True):
    """The result of a TokenReview."""

    authenticated: bool = False
    user: TokenReviewUser = msgspec.field(default_factory=TokenReviewUser)
    audiences: tuple[str, ...] = ()


class TokenReview(KubeStruct, frozen=True):
    """A TokenReview, which the API server answers at once and does not store."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: TokenReviewStatus = msgspec.field(default_factory=TokenReviewStatus)


TOKEN_REVIEW = Kind(
    api_version="authentication.k8s.io/v1",
    name="TokenReview",
    plural="tokenreviews",
    namespaced=False,
    type=TokenReview,
)


@dataclass(frozen=True, slots=True)
class _Known:
    node: str
    until_s: float


class NodeIdentity:
    """Authenticator of node agents. Thread-safe.

    Args:
        client: client of the API server.
        user: user name of the agents' service account: ``system:serviceaccount:NAMESPACE:NAME``.
        now_s: returns monotonic time in seconds.
    """

    def __init__(self, client: KubeClient, user: str, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._user = user
        self._now_s = now_s
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    def node_of(self, authorization: str) -> str:
        """Return the name of the node of the agent that sent a request.

        Args:
            authorization: the ``Authorization`` header of the request.

        Raises:
            CalabashError: NOT_AUTHENTICATED if the token is not an agent's, or an error of the API server.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not 0 < len(token) <= _TOKEN_CHARACTERS_MAX or not token.isascii():
            raise _refused("the request has no token", "send `Authorization: Bearer TOKEN`")
        digest = hashlib.sha256(token.encode()).digest()
        now_s = self._now_s()
        with self._lock:
            known = self._known.get(digest)
        if known is None or known.until_s <= now_s:
            node = self._asked(token)
            known = _Known(node, now_s + (REMEMBERED_S if node else REFUSED_S))
            with self._lock:
                self._known[digest] = known
                self._known.move_to_end(digest)
                while len(self._known) > _REMEMBERED_MAX:
                    self._known.popitem(last=False)
        if not known.node:
            raise _refused(
                f"the token is not one of {self._user} for {AUDIENCE} that is bound to a pod on a node",
                "agents use the token that is projected into their own pod",
            )
        return known.node

    def _asked(self, token: str) -> str:
        """Return the node of a token according to the API server; "" if the token is not one of an agent."""
        body = {"spec": {"token": token, "audiences": [AUDIENCE]}}
        status = self._client.create(TOKEN_REVIEW, body).status
        nodes = status.user.extra.get(NODE_CLAIM, ())
        ours = status.authenticated and AUDIENCE in status.audiences and status.user.username == self._user
        return nodes[0] if ours and len(nodes) == 1 else ""


def _refused(message: str, hint: str) -> CalabashError:
    return CalabashError(message, reason=Reason.NOT_AUTHENTICATED, hint=hint)
