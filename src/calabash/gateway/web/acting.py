"""What happens when a form of the table is posted: the pool is asked, and the page after it is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from calabash.gateway.web.form_table import FORMS
from calabash.gateway.web.forms import Form
from calabash.gateway.web.pages.page import Outcome, PageAction, Visit

SAID_MAX = 500


class AnyJob(msgspec.Struct, kw_only=True, frozen=True):
    """A job in a reply that has more than it."""

    id: str


class AnyFailure(msgspec.Struct, kw_only=True, frozen=True):
    """An error of one part of a request whose other parts were done."""

    message: str


class AnyReply(msgspec.Struct, kw_only=True, frozen=True):
    """What a form needs of the pool's answer, whatever route it asked: names for the next page, and a secret."""

    id: str | int = ""
    name: str = ""
    number: str | int = ""
    queue: str = ""
    state: str = ""
    job: AnyJob | None = None
    secret: str = ""
    passed: bool | None = None
    why: str = ""
    failed: list[AnyFailure] = []


def action_of(form: Form) -> PageAction:
    """The address of a form, and what it does."""

    async def act(visit: Visit, given: Mapping[str, str]) -> Outcome:
        path, body = form.request(given)
        reply = await visit.pool.send(form.method, path, body, AnyReply)
        known: dict[str, Any] = {n: v for n, v in msgspec.structs.asdict(reply).items() if v not in ("", None, [])}
        known |= {"id": reply.job.id} if reply.job else {}
        said = form.told(given, known)
        if reply.passed is False:
            said = f"It failed its test: {reply.why}"
        if reply.failed:
            said = f"{said} Not done: {'; '.join(failure.message for failure in reply.failed)}"[:SAID_MAX]
        return Outcome(to=form.page(given, known), said=said, secret=reply.secret)

    return PageAction(path=f"/do/{form.name}", act=act)


ACTIONS = tuple(action_of(form) for form in FORMS.values())
