"""Cache of the users of tokens, so that limits can be counted by user over all its tokens.

A token belongs to the same user for its whole life, so the pool is asked only once. The result is used for limits only:
the pool checks the token with each request.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from calabash.adapters.pool.streams import PoolStreams
from calabash.api import tenancy_routes
from calabash.gateway.api.pool_api import PoolOfVisitor

KEPT_MAX = 10_000


class Principals:
    """Cache of the users of tokens, by a digest of the token, with at most KEPT_MAX entries. Used by one event loop."""

    def __init__(self, pool: PoolStreams) -> None:
        self._pool = pool
        self._known: OrderedDict[str, str] = OrderedDict()  # digest of a token -> its user

    async def user_of(self, token: str, *, origin: Mapping[str, str]) -> str:
        """Return the user of a token. Raises CalabashError with the pool's reason if the pool refuses the token.

        ``origin`` is the header with the address of the client, for the pool's audit log.
        """
        digest = hashlib.sha256(token.encode()).hexdigest()
        user = self._known.get(digest)
        if user is None:
            visitor = PoolOfVisitor(self._pool, token, origin=origin, holder=f"token {digest}")
            user = f"user {(await visitor.get(tenancy_routes.SHOW_ME)).user}"
            self._known[digest] = user
            if len(self._known) > KEPT_MAX:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(digest)
        return user
