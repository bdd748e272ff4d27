"""How notices go out: the section ``[notifications]`` of ``pool.toml``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from calabash.adapters.notify import MailSender, MailServer, WebhookSender
from calabash.transport.web import AddressRule, WebClient
from calabash.transport.web.addresses import networks


class MailSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where mail is handed in; there is none while ``host`` is empty.

    ``tls``: ``starttls``, ``tls``, or ``none`` for a server on this machine. ``password_file``: one that nobody else can read.
    ``authority``: PEM file of whoever signs its certificate. ``domains``: where mail may go to; empty: anywhere.
    """

    host: Annotated[str, Meta(max_length=253)] = ""
    port: Annotated[int, Meta(ge=1, le=65_535)] = 587
    tls: Literal["starttls", "tls", "none"] = "starttls"
    sender: Annotated[str, Meta(max_length=254)] = ""
    user: str = ""
    password_file: str = ""
    authority: str = ""
    domains: list[str] = []


class NotificationSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """``allow``: networks beside the public ones that webhooks may be sent into, plain HTTP too. ``per_tenant``: how many
    notifications one tenant has. ``waiting_minutes``: after that long a request that waits is told of; ``token_days``: that
    long before a token expires."""

    allow: list[str] = []
    per_tenant: Annotated[int, Meta(ge=1, le=1000)] = 20
    waiting_minutes: Annotated[float, Meta(gt=0, le=100_000)] = 30
    token_days: Annotated[float, Meta(gt=0, le=366)] = 7
    mail: MailSettings = MailSettings()

    def rule(self) -> AddressRule:
        """Which addresses a webhook may be at. Raises CalabashError(BAD_FILE)."""
        return AddressRule(allowed=networks(self.allow))

    def webhooks(self) -> WebhookSender:
        """What sends to web servers. Raises CalabashError(BAD_FILE)."""
        return WebhookSender(WebClient(rule=self.rule(), bytes_max=64 << 10))

    def mails(self) -> MailSender | None:
        """What sends mail; None where no server is named. Raises CalabashError(BAD_FILE)."""
        mail = self.mail
        if not mail.host:
            return None
        server = MailServer(
            host=mail.host,
            port=mail.port,
            sender=mail.sender,
            tls=mail.tls,
            user=mail.user,
            password_file=mail.password_file,
            authority=mail.authority,
        )
        return MailSender(server)
