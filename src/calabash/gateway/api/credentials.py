"""Read the bearer token of an API request. The gateway forwards the token, and the pool checks it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from calabash.model.errors import CalabashError, Reason

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,512}\Z")


def token_of(headers: Mapping[str, str]) -> str:
    """Return the bearer token; "" if there is none.

    Raises:
        CalabashError: NOT_PERMITTED if the Authorization header is not a bearer token.
    """
    shown = headers.get("authorization", "")
    if not shown:
        return ""
    scheme, _, token = shown.partition(" ")
    if scheme.lower() != "bearer" or not _TOKEN.match(token.strip()):
        raise CalabashError(
            "the Authorization header is not `Bearer TOKEN`",
            reason=Reason.NOT_PERMITTED,
            hint="create a token with `calabash token create`",
        )
    return token.strip()
