"""Deliver a notice as a signed POST by the conventions of Standard Webhooks.

``webhook-id`` is the same for every attempt, so that a receiver can drop repetitions; ``webhook-timestamp`` is the
second of the attempt; ``webhook-signature`` is ``v1,`` and the base64 of HMAC-SHA256 over ``ID.TIMESTAMP.BODY`` with
the bytes of the secret, which is written ``whsec_BASE64``. Redirects are not followed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import msgspec

from calabash.adapters.notify.outcome import RefusedForGoodError
from calabash.model.errors import CalabashError, Reason
from calabash.model.notices import Delivery
from calabash.transport.web import WebClient

SECRET_BYTES = 32
PREFIX = "whsec_"
_AGAIN = frozenset({408, 425, 429})


def new_secret() -> str:
    """Return a new random secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signature(secret: str, *, number: str, second: int, body: bytes) -> str:
    """Return the signature of a request.

    Args:
        secret: secret of the receiver, ``whsec_BASE64``.
        number: value of the header ``webhook-id``.
        second: value of the header ``webhook-timestamp``.
        body: body of the request.
    """
    key = base64.b64decode(secret.removeprefix(PREFIX))
    mac = hmac.new(key, f"{number}.{second}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(mac).decode()}"


class WebhookSender:
    """Sender of webhooks; safe for threads."""

    def __init__(self, web: WebClient) -> None:
        self._web = web

    def send(self, url: str, secret: str, delivery: Delivery, *, now_s: float) -> None:
        """Send a notice.

        Raises CalabashError if it was not accepted, RefusedForGoodError if the receiver would refuse it again.
        """
        body, second = content_of(delivery), int(now_s)
        headers = {
            "Content-Type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(second),
            "webhook-signature": signature(secret, number=delivery.id, second=second, body=body),
        }
        answer = self._web.ask("POST", url, body, headers=headers)
        if 200 <= answer.status < 300:
            return
        for_good = 300 <= answer.status < 500 and answer.status not in _AGAIN
        kind = RefusedForGoodError if for_good else CalabashError
        raise kind(f"the receiver answers with status {answer.status}", reason=Reason.UNREACHABLE)


def content_of(delivery: Delivery) -> bytes:
    """Return the body: kind, time, object, message and tenant of the notice."""
    notice = delivery.notice
    shown = {
        "type": notice.kind.value,
        "timestamp": notice.at,
        "data": {"tenant": notice.tenant, "about": notice.about, "message": notice.message},
    }
    return msgspec.json.encode(shown)
