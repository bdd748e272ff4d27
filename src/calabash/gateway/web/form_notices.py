"""Forms of notifications."""

from __future__ import annotations

from calabash.gateway.web.forms import Form, flag, text, words

_OF = {"tenant": text}

NOTICES = (
    Form(
        name="notification",
        needs="manage-notices",
        method="PUT",
        path="/v1/notifications/{name}",
        fields={"webhook": text, "email": text, "kinds": words, "new_secret": flag},
        blank={"kinds": []},
        query=_OF,
        back="/notifications",
        said="Notification {name} is set.",
    ),
    Form(
        name="notification-test",
        needs="manage-notices",
        method="POST",
        path="/v1/notifications/{name}/test",
        query=_OF,
        back="/notifications",
        said="{name} has taken a test notice.",
    ),
    Form(
        name="notification-delete",
        needs="manage-notices",
        method="DELETE",
        path="/v1/notifications/{name}",
        query=_OF,
        back="/notifications",
        said="Notification {name} is gone.",
    ),
)
