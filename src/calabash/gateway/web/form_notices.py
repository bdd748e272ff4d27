"""Forms of notifications."""

from __future__ import annotations

from calabash.api import endpoints
from calabash.gateway.web.forms import Form, flag, text, words

_OF = {"tenant": text}

NOTICES = (
    Form(
        name="notification",
        needs="manage-notices",
        endpoint=endpoints.PUT_NOTIFICATION,
        fields={"webhook": text, "email": text, "kinds": words, "new_secret": flag},
        blank={"kinds": []},
        query=_OF,
        back="/notifications",
        said="Notification {name} saved.",
    ),
    Form(
        name="notification-test",
        needs="manage-notices",
        endpoint=endpoints.TEST_NOTIFICATION,
        query=_OF,
        back="/notifications",
        said="The receiver of {name} accepted the test notice.",
    ),
    Form(
        name="notification-delete",
        needs="manage-notices",
        endpoint=endpoints.DELETE_NOTIFICATION,
        query=_OF,
        back="/notifications",
        said="Notification {name} deleted.",
    ),
)
