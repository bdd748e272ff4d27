"""Telling others: one request to a web server of theirs, or one mail.

What lives here: how a notice looks to its receiver, signatures, the mail server. What never lives here: who is told what, and
when it is tried again.
"""

from calabash.adapters.notify.mail import MailSender, MailServer
from calabash.adapters.notify.outcome import RefusedForGoodError
from calabash.adapters.notify.webhook import WebhookSender, new_secret

__all__ = ["MailSender", "MailServer", "RefusedForGoodError", "WebhookSender", "new_secret"]
