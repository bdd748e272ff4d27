"""The users of tokens, as the pool names them, so that what one user may take is bounded over all its tokens.

A token never changes its user, so the pool is asked once. The gateway decides nothing else by it: the token goes to the pool
with each request and is checked there.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from calabash.adapters.pool.streams import PoolStreams
from calabash.api.tenancy import Me
from calabash.gateway.api.pool_api import PoolOfVisitor

KEPT_MAX = 10_000


class Principals:
    """Used by one event loop."""

    def __init__(self, pool: PoolStreams) -> None:
        self._pool = pool
        self._known: OrderedDict[str, str] = OrderedDict()  # digest of a token -> its user

    async def user_of(self, token: str, *, origin: Mapping[str, str]) -> str:
        """Return the user of a token. Raises CalabashError with the pool's reason, as for a token that it does not accept."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        user = self._known.get(digest)
        if user is None:
            visitor = PoolOfVisitor(self._pool, token, origin=origin, holder=f"token {digest}")
            user = f"user {(await visitor.get('/v1/me', Me)).user}"
            self._known[digest] = user
            if len(self._known) > KEPT_MAX:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(digest)
        return user
