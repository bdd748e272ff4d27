"""Deliver a notice as a mail through the administrator's mail server."""

from __future__ import annotations

import smtplib
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime

from calabash.adapters.host.files import private_text
from calabash.adapters.notify.outcome import RefusedForGoodError
from calabash.model.errors import CalabashError, Reason, cause
from calabash.model.notices import Delivery

TIMEOUT_S = 10.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """Mail server for outgoing mail.

    Args:
        tls: ``starttls``, ``tls`` from the first byte, or ``none`` for a server on this machine.
        authority: PEM file of the authorities that may sign the server's certificate; "" for those of the system.
    """

    host: str
    port: int
    sender: str
    tls: str = "starttls"
    user: str = ""
    password_file: str = ""
    authority: str = ""


class MailSender:
    """Sender of mails; safe for threads.

    Raises CalabashError for a server on another machine without TLS, or a password file that other users can read.
    """

    def __init__(self, server: MailServer) -> None:
        self._server = server
        if server.tls == "none" and server.host not in _LOOPBACK:
            raise CalabashError(
                f"mail to {server.host} would go without TLS",
                reason=Reason.BAD_FILE,
                hint="say tls = starttls or tls in [notifications.mail]",
            )
        checked_address(server.sender)
        self._password = private_text(server.password_file) if server.password_file else ""
        self._tls = ssl.create_default_context(cafile=server.authority or None)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2

    def send(self, to: str, delivery: Delivery) -> None:
        """Send a notice.

        Raises CalabashError if it was not accepted, RefusedForGoodError if the server would refuse it again.
        """
        message = mail_of(delivery, sender=self._server.sender, to=to)
        try:
            with self._connected() as server:
                if self._password:
                    server.login(self._server.user, self._password)
                server.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            code = next(iter(error.recipients.values()))[0]
            raise _failure(f"the mail server refuses the receiver with {code}", for_good=code >= 500) from None
        except smtplib.SMTPAuthenticationError as error:
            raise _failure(f"the mail server refuses the password with {error.smtp_code}") from None
        except smtplib.SMTPResponseException as error:
            for_good = error.smtp_code >= 500 and isinstance(error, smtplib.SMTPDataError)
            raise _failure(f"the mail server answers with {error.smtp_code}", for_good=for_good) from None
        except (OSError, smtplib.SMTPException) as error:
            raise _failure(f"the mail server does not answer: {cause(error)}") from None

    def _connected(self) -> smtplib.SMTP:
        server = self._server
        if server.tls == "tls":
            return smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=self._tls)
        found = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
        if server.tls == "starttls":
            try:
                found.starttls(context=self._tls)
            except BaseException:
                found.close()
                raise
        return found


def checked_address(text: str) -> str:
    """Return the text if it is a mail address ``NAME@DOMAIN``. Raises CalabashError(BAD_REQUEST)."""
    try:
        found = Address(addr_spec=text)
    except (ValueError, IndexError):
        found = Address()
    plain = text.isascii() and text.isprintable() and len(text) <= 254 and not set(text) & set(' "<>(),;:\\')
    if not plain or not found.username or "." not in found.domain.strip(".") or found.addr_spec != text:
        raise CalabashError(f"{text[:80]!r} is not a mail address", hint="for example gpu-team@example.org")
    return text


def mail_of(delivery: Delivery, *, sender: str, to: str) -> EmailMessage:
    """Return the mail; its Message-ID is the delivery's, so that receivers recognise a repeated mail."""
    notice = delivery.notice
    message = EmailMessage()
    message["From"], message["To"] = sender, to
    message["Subject"] = _line(f"[calabash] {notice.kind.value}: {notice.about or notice.tenant or 'the platform'}")
    message["Date"] = format_datetime(datetime.fromtimestamp(notice.at, UTC))
    message["Message-ID"] = f"<{delivery.id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    whose = f"Tenant: {notice.tenant}\n" if notice.tenant else ""
    message.set_content(f"{notice.message}\n\n{whose}Notice: {notice.kind.value}\nNotification: {delivery.name}\n")
    return message


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:150]


def _failure(message: str, *, for_good: bool = False) -> CalabashError:
    return (RefusedForGoodError if for_good else CalabashError)(message, reason=Reason.UNREACHABLE)
