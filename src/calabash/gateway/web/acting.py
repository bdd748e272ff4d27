"""Handle a posted form: send its request to the pool and name the page to show next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from calabash.gateway.web.form_table import FORMS
from calabash.gateway.web.forms import Form
from calabash.gateway.web.pages.page import Outcome, PageAction, Visit

SAID_MAX = 500


class AnyJob(msgspec.Struct, kw_only=True, frozen=True):
    """Job in the reply to a request that has started a job."""

    id: str


class AnyFailure(msgspec.Struct, kw_only=True, frozen=True):
    """Error of one item of a request whose other items succeeded."""

    message: str


class AnyReply(msgspec.Struct, kw_only=True, frozen=True):
    """Fields of a reply that forms use, for all routes: names for the next page, a secret, and results of a test."""

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
    """Return the page action that handles posts of a form."""

    async def act(visit: Visit, given: Mapping[str, str]) -> Outcome:
        path, body = form.request(given)
        reply = await visit.pool.send(form.endpoint.method, path, body, AnyReply)
        known: dict[str, Any] = {n: v for n, v in msgspec.structs.asdict(reply).items() if v not in ("", None, [])}
        known |= {"id": reply.job.id} if reply.job else {}
        said = form.message(given, known)
        if reply.passed is False:
            said = f"The test failed: {reply.why}"
        if reply.failed:
            said = f"{said} Not done: {'; '.join(failure.message for failure in reply.failed)}"[:SAID_MAX]
        return Outcome(to=form.page(given, known), said=said, secret=reply.secret)

    return PageAction(path=f"/do/{form.name}", act=act)


ACTIONS = tuple(action_of(form) for form in FORMS.values())
