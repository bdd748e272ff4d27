"""Settings of notifications: the section ``[notifications]`` of ``pool.toml``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from calabash.adapters.notify import MailSender, MailServer, WebhookSender
from calabash.transport.web import AddressRule, WebClient
from calabash.transport.web.addresses import networks


class MailSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Mail server for notices; no mail is sent if ``host`` is empty.

    Args:
        host: name of the mail server.
        port: port of the mail server.
        sender: mail address from which notices are sent.
        user: account on the mail server; empty: no authentication.
        tls: ``starttls``, ``tls``, or ``none`` for a server on this machine.
        password_file: file with the password; other users must not be able to read it.
        authority: PEM file of the authority that signs the server's certificate.
        domains: domains of permitted receivers; empty: all.
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
    """The section ``[notifications]``.

    Args:
        allow: networks that webhooks may reach in addition to public addresses, also with plain HTTP.
        per_tenant: greatest number of rules of one tenant.
        waiting_minutes: time after which a waiting request causes a notice.
        token_days: time before the end of a token at which it causes a notice.
        mail: mail server.
    """

    allow: list[str] = []
    per_tenant: Annotated[int, Meta(ge=1, le=1000)] = 20
    waiting_minutes: Annotated[float, Meta(gt=0, le=100_000)] = 30
    token_days: Annotated[float, Meta(gt=0, le=366)] = 7
    mail: MailSettings = MailSettings()

    def rule(self) -> AddressRule:
        """Return the rule of permitted webhook addresses. Raises BAD_FILE."""
        return AddressRule(allowed=networks(self.allow))

    def webhooks(self) -> WebhookSender:
        """Return the sender of webhooks. Raises BAD_FILE."""
        return WebhookSender(WebClient(rule=self.rule(), bytes_max=64 << 10))

    def mails(self) -> MailSender | None:
        """Return the sender of mail; None if no mail server is set. Raises BAD_FILE."""
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
