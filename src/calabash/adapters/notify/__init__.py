"""Delivery of notices: one HTTP request to a tenant's web server, or one mail.

Message formats, signatures and the mail server are here. Receivers and retries are decided elsewhere.
"""

from calabash.adapters.notify.mail import MailSender, MailServer
from calabash.adapters.notify.outcome import RefusedForGoodError
from calabash.adapters.notify.webhook import WebhookSender, new_secret

__all__ = ["MailSender", "MailServer", "RefusedForGoodError", "WebhookSender", "new_secret"]
