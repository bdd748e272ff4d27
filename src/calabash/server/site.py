"""The console's pages and forms as handlers: made from the pages that ``calabash.server.web`` has as data."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
import structlog
from litestar import Litestar, Response, get, post
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from calabash.api.tenancy import IssuedTokenReply, Me, SessionOrder
from calabash.model.errors import CalabashError, Reason
from calabash.server.asking import PoolOfVisitor, SignedOutError, decoded
from calabash.server.credentials import (
    CSRF_HEADER,
    Credential,
    credential_of,
    require_csrf,
    require_own_page,
    session_cookie,
)
from calabash.server.flashes import Flash, Flashes
from calabash.server.going import HTML, Seen, go, here_of, local, next_of
from calabash.server.guard import forwarded_for, headers_of
from calabash.server.oidc.pages import OidcPages
from calabash.server.settings import Gateway
from calabash.server.web.pages import ACTIONS, PAGES
from calabash.server.web.pages.page import ConsolePage, PageAction, PageFile, Visit
from calabash.server.web.rendering import loaded_environment, render

log = structlog.get_logger(__name__)

FIELDS_MAX = 200
LOGIN = "/login"
_STATUS = {
    Reason.BAD_REQUEST: 400,
    Reason.NOT_AUTHENTICATED: 401,
    Reason.NOT_PERMITTED: 403,
    Reason.NOT_FOUND: 404,
    Reason.USER_LIMIT: 429,
    Reason.POOL_DOWN: 503,
    Reason.UNREACHABLE: 502,
    Reason.TIMEOUT: 504,
}


class Site:
    """The handlers of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._templates = loaded_environment()
        self._flashes = Flashes()
        self._oidc = gateway.oidc

    def application(self) -> Litestar:
        """The ASGI application of everything but the API and static files."""
        handlers = [self._page(page) for page in PAGES]
        handlers += [self._form(action) for action in ACTIONS]
        handlers += [get(LOGIN)(self.login_page), post(LOGIN)(self.log_in), post("/logout")(self.log_out)]
        handlers += OidcPages(self._oidc, self.html).handlers() if self._oidc else []
        return Litestar(
            route_handlers=handlers,
            exception_handlers={Exception: self._failed},
            openapi_config=None,
            request_max_body_size=None,  # the guard has it
            logging_config=None,
        )

    async def login_page(self, request: Seen) -> Response[str]:
        """Where a login link leads; its code stands behind the #, which browsers do not send."""
        oidc = self._oidc.name if self._oidc else ""
        shown = {"page": {"title": "Log in", "section": ""}, "next": next_of(request), "oidc": oidc}
        return self.html("login.html", request, {**shown, "left": "left" in request.query_params})

    async def log_in(self, request: Seen) -> Response[str]:
        """A code for a session."""
        require_own_page(headers_of(request.scope), scheme=request.scope["scheme"])
        given = await _fields(request)
        body = msgspec.json.encode(SessionOrder(code=given.get("code", "")[:128].strip()))
        origin = forwarded_for(request.scope)
        asked = self._gateway.pool.ask("POST", "/v1/sessions", body, token=self._gateway.credential, headers=origin)
        session = decoded(await asked, IssuedTokenReply)
        return self.begin_session(request, session.secret, to=local(given.get("next", "")))

    def begin_session(self, request: Seen, secret: str, *, to: str) -> Response[str]:
        """Give the browser its session and send it on."""
        cookie = session_cookie(secret, secure=request.scope["scheme"] == "https")
        return go(request, to, {"set-cookie": cookie})

    async def log_out(self, request: Seen) -> Response[str]:
        """End the session, at the pool too."""
        credential, _ = await self._posted(request)
        origin = forwarded_for(request.scope)
        await self._gateway.pool.ask("DELETE", "/v1/sessions/current", token=credential.token, headers=origin)
        to = f"{LOGIN}?left" if self._oidc else LOGIN
        return go(request, to, {"set-cookie": session_cookie("", secure=request.scope["scheme"] == "https")})

    def _page(self, page: ConsolePage) -> HTTPRouteHandler:
        async def show(request: Seen) -> Response[Any]:
            credential = self._credential(request)
            visitor = PoolOfVisitor(self._gateway.pool, credential.token, origin=forwarded_for(request.scope))
            me = await visitor.get("/v1/me", Me)
            shown = dict(await page.read(self._visit(request, visitor, me)))
            if (file := page.files.get(request.query_params.get("format", ""))) is not None:
                return await _download(file, shown, request.query_params["format"])
            if request.query_params.get("format") == "json":
                return Response(msgspec.json.encode(shown), media_type="application/json")
            flash = self._flashes.take(credential.token)
            return self.html(page.template, request, {**shown, "page": page, "me": me, "flash": flash}, credential)

        show.__name__ = f"show_{page.template.partition('.')[0]}"
        return get(page.path)(show)

    def _form(self, action: PageAction) -> HTTPRouteHandler:
        async def act(request: Seen) -> Response[str]:
            credential, given = await self._posted(request)
            visitor = PoolOfVisitor(self._gateway.pool, credential.token, origin=forwarded_for(request.scope))
            me = await visitor.get("/v1/me", Me)
            outcome = await action.act(self._visit(request, visitor, me), given)
            if outcome.said or outcome.secret:
                self._flashes.keep(credential.token, Flash(said=outcome.said, secret=outcome.secret))
            return go(request, local(outcome.to))

        return post(action.path)(act)

    def _visit(self, request: Seen, visitor: PoolOfVisitor, me: Me) -> Visit:
        return Visit(
            pool=visitor,
            path={name: str(value) for name, value in request.path_params.items()},
            query=dict(request.query_params),
            may=frozenset(me.may),
            now_s=time.time(),
        )

    def _credential(self, request: Seen) -> Credential:
        credential = credential_of(headers_of(request.scope), secure=request.scope["scheme"] == "https")
        if not credential.token:
            raise SignedOutError("nobody is logged in", reason=Reason.NOT_AUTHENTICATED)
        return credential

    async def _posted(self, request: Seen) -> tuple[Credential, dict[str, str]]:
        """Whose form it is, and its fields. Raises NOT_PERMITTED for a form that no page of that session has."""
        headers = headers_of(request.scope)
        require_own_page(headers, scheme=request.scope["scheme"])
        credential, given = self._credential(request), await _fields(request)
        require_csrf(credential, headers.get(CSRF_HEADER) or given.get("csrf", ""))
        return credential, given

    def html(
        self,
        template: str,
        request: Seen,
        shown: Mapping[str, Any],
        credential: Credential | None = None,
        status: int = 200,
    ) -> Response[str]:
        """A page made of a template."""
        every = {
            "static": self._gateway.static.url,
            "csrf": credential.csrf if credential else "",
            "me": None,
            "flash": None,
            "path": request.scope["path"],
            "query": dict(request.query_params),
            "now_s": time.time(),
        }
        return Response(render(self._templates, template, {**every, **shown}), media_type=HTML, status_code=status)

    def _failed(self, request: Seen, error: Exception) -> Response[Any]:
        """What went wrong as a page; whoever is logged in no more is asked to log in."""
        if isinstance(error, SignedOutError) and not request.scope["path"].startswith(LOGIN):
            expired = {"set-cookie": session_cookie("", secure=request.scope["scheme"] == "https")}
            return go(request, f"{LOGIN}?next={quote(here_of(request), safe='/')}", expired)
        status, failure = _told(error)
        if request.query_params.get("format") == "json":
            content = {"reason": str(failure.reason), "message": failure.message, "hint": failure.hint}
            return Response(content, status_code=status, media_type="application/json")
        back = LOGIN if request.scope["path"].startswith(LOGIN) else "/"
        shown = {"page": {"title": "That did not work", "section": ""}, "failure": failure, "back": back}
        return self.html("failure.html", request, shown, status=status)


def _told(error: Exception) -> tuple[int, CalabashError]:
    if isinstance(error, CalabashError):
        return _STATUS.get(error.reason, 401 if isinstance(error, SignedOutError) else 409), error
    if isinstance(error, HTTPException):
        reason = Reason.NOT_FOUND if error.status_code == 404 else Reason.BAD_REQUEST
        return error.status_code, CalabashError(f"there is no such page ({error.detail})", reason=reason)
    log.error("a page failed unexpectedly", exc_info=error)
    return 500, CalabashError("the console failed unexpectedly", reason=Reason.CONFLICT, hint="see the pool's log")


async def _download(file: PageFile, shown: Mapping[str, Any], ending: str) -> Response[bytes]:
    """A page as a file, which browsers keep and do not show."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", file.name(shown))[:100] or "page"
    headers = {"content-disposition": f'attachment; filename="{name}.{ending}"'}
    return Response(await asyncio.to_thread(file.write, shown), media_type=file.media_type, headers=headers)


async def _fields(request: Seen) -> dict[str, str]:
    """The fields of a form; of several with one name the last. Raises BAD_REQUEST for what is no form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise CalabashError(f"a form is expected, not {kind or 'nothing'}", reason=Reason.BAD_REQUEST)
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        raise CalabashError("the form is not understood", reason=Reason.BAD_REQUEST) from None
