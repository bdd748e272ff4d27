"""HTTP handlers of the console's pages and forms, made from the declarations in ``calabash.gateway.web``.

A browser that opens a page gets an empty page (the shell) with a script. The script requests the content of the page
with a proof of its session (``calabash.gateway.sessions.store``) and shows it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import structlog

from calabash.adapters.pool.streams import PoolStreams
from calabash.api import endpoints, tenancy_routes
from calabash.api.gateway import SESSION_HEADER
from calabash.api.tenancy import Me, SessionOrder
from calabash.gateway.api.pool_api import PoolOfVisitor, SignedOutError
from calabash.gateway.oidc.login import OidcLogin
from calabash.gateway.oidc.pages import OidcPages
from calabash.gateway.serving.allowed_hosts import without_name
from calabash.gateway.serving.request_guard import forwarded_for
from calabash.gateway.serving.static import StaticFiles
from calabash.gateway.sessions.flashes import Flash, Flashes
from calabash.gateway.sessions.gate import session_of, target_of
from calabash.gateway.sessions.login import LoginOrder, Logins, decoded_body
from calabash.gateway.sessions.redirects import HTML, Seen, go, local, redirect
from calabash.gateway.sessions.store import Sessions
from calabash.gateway.web.pages import ACTIONS, PAGES
from calabash.gateway.web.pages.page import ConsolePage, PageAction, PageFile, Visit
from calabash.gateway.web.rendering import loaded_environment, render
from calabash.model.errors import CalabashError, Reason
from calabash.transport.web.application import HTTPException, Response, WebApplication, json_response
from calabash.transport.web.routing import Handler, get, post

log = structlog.get_logger(__name__)

FIELDS_MAX = 200
LOGIN = "/login"
LIVE_HEADER = "calabash-live"  # set in requests that refresh parts of a page
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
    """HTTP handlers of one gateway.

    Args:
        pool: client of the pool.
        credential: the gateway's own credential, for requests of sessions.
        sessions: derives the keys of console sessions.
        static: static files.
        oidc: login at an OpenID Connect provider; None: not configured.
    """

    def __init__(
        self, pool: PoolStreams, *, credential: str, sessions: Sessions, static: StaticFiles, oidc: OidcLogin | None
    ) -> None:
        self._pool, self._credential = pool, credential
        self._sessions, self._static = sessions, static
        self._templates = loaded_environment()
        self._flashes = Flashes()
        self._logins = Logins(pool, sessions, credential=credential)
        self._oidc = oidc

    def application(self) -> WebApplication:
        """Return the ASGI application for all paths except the API and static files."""
        handlers = [self._page(page) for page in PAGES]
        handlers += [self._form(action) for action in ACTIONS]
        handlers += [get(LOGIN)(self.login_page), post(LOGIN)(self.log_in), post("/logout")(self.log_out)]
        handlers += OidcPages(self._oidc, self._logins, self.html).handlers() if self._oidc else []
        return WebApplication(handlers, failed=self._failed)

    async def login_page(self, request: Seen) -> Response:
        """Return the login page. Its script reads the code of a login link, which is after the ``#`` of the URL."""
        if numeric := _numeric_address(request):
            return redirect(numeric)
        oidc = self._oidc.name if self._oidc else ""
        shown = {"page": {"title": "Log in", "section": ""}, "oidc": oidc}
        return self.html("login.html", request, {**shown, "left": "left" in request.query})

    async def log_in(self, request: Seen) -> Response:
        """Exchange a login code for a session."""
        order = await decoded_body(request, LoginOrder)
        wanted = SessionOrder(code=order.code.strip(), console=True)
        return await self._logins.begin(wanted, origin=forwarded_for(request.scope))

    async def log_out(self, request: Seen) -> Response:
        """End the session in the pool."""
        session = self._session(request)
        await self._pool.ask(
            endpoints.END_SESSION.method,
            endpoints.END_SESSION.path,
            token=self._credential,
            headers={**forwarded_for(request.scope), SESSION_HEADER: session},
            holder=f"session {session}",
        )
        return go(f"{LOGIN}?left" if self._oidc else LOGIN)

    def _page(self, page: ConsolePage) -> Handler:
        async def show(request: Seen) -> Response:
            if not session_of(request.scope) and _opened(request):
                return self._shell(request)
            session = self._session(request)
            visitor = self._visitor(request, session)
            me = await visitor.get(tenancy_routes.SHOW_ME)
            shown = dict(await page.read(self._visit(request, visitor, me)))
            if (file := page.files.get(request.query.get("format", ""))) is not None:
                return await _download(file, shown, request.query["format"])
            if request.query.get("format") == "json":
                return json_response(shown)
            flash = None if LIVE_HEADER in request.headers else self._flashes.take(session)
            return self.html(page.template, request, {**shown, "page": page, "me": me, "flash": flash})

        return get(page.path)(show)

    def _form(self, action: PageAction) -> Handler:
        async def act(request: Seen) -> Response:
            session, given = self._session(request), await _fields(request)
            visitor = self._visitor(request, session)
            me = await visitor.get(tenancy_routes.SHOW_ME)
            outcome = await action.act(self._visit(request, visitor, me), given)
            if outcome.said or outcome.secret:
                self._flashes.put(session, Flash(said=outcome.said, secret=outcome.secret))
            return go(local(outcome.to))

        return post(action.path)(act)

    def _visit(self, request: Seen, visitor: PoolOfVisitor, me: Me) -> Visit:
        return Visit(
            pool=visitor,
            path=request.path_params,
            query=request.query,
            may=frozenset(me.may),
            now_s=time.time(),
        )

    def _session(self, request: Seen) -> str:
        """Return the session ID of the request. Raises SignedOutError for a request without a valid session."""
        session = session_of(request.scope)
        if not session:
            raise SignedOutError("the request belongs to no session of this console", reason=Reason.NOT_AUTHENTICATED)
        return session

    def _visitor(self, request: Seen, session: str) -> PoolOfVisitor:
        return PoolOfVisitor(
            self._pool,
            self._credential,
            session=session,
            origin=forwarded_for(request.scope),
            holder=f"session {session}",
        )

    def _shell(self, request: Seen) -> Response:
        """Return the empty page whose script requests the content, or a redirect to the same page under the IP address.

        A page that was opened under ``localhost`` without TLS is redirected: it cannot have a session.
        """
        if numeric := _numeric_address(request):
            return redirect(numeric)
        return self.html("shell.html", request, {"page": {"title": "Console", "section": ""}})

    def html(
        self,
        template: str,
        request: Seen,
        shown: Mapping[str, Any],
        status: int = 200,
    ) -> Response:
        """Render a template.

        Args:
            template: file name of the template.
            request: the request.
            shown: values for the template, in addition to those that every page has.
            status: HTTP status of the reply.
        """
        every = {
            "static": self._static.url,
            "clock": self._sessions.clock(),
            "session": session_of(request.scope),
            "me": None,
            "flash": None,
            "path": request.scope["path"],
            "query": request.query,
            "now_s": time.time(),
        }
        return Response(render(self._templates, template, {**every, **shown}), media_type=HTML, status_code=status)

    def _failed(self, request: Seen, error: Exception) -> Response:
        """Return the error as an HTML page, or as JSON if a script or program has sent the request."""
        status, failure = _status_and_error(error)
        if request.query.get("format") == "json" or (not _opened(request) and not session_of(request.scope)):
            content = {"reason": str(failure.reason), "message": failure.message, "hint": failure.hint}
            return json_response(content, status)
        back = LOGIN if request.scope["path"].startswith(LOGIN) else "/"
        shown = {"page": {"title": "That did not work", "section": ""}, "failure": failure, "back": back}
        return self.html("failure.html", request, shown, status=status)


def _opened(request: Seen) -> bool:
    """Return True if the address was opened in a browser, False if a program or a script asks for data."""
    accepted = request.headers.get("accept", "*/*")
    return "text/html" in accepted or ("*/*" in accepted and "format" not in request.query)


def _numeric_address(request: Seen) -> str:
    """Return the URL of the same page under the IP address of the server.

    Returns "" if no redirect is needed: the request uses TLS, or the host is not ``localhost``.
    """
    if request.scope["scheme"] == "https":
        return ""
    host, server = request.headers.get("host", ""), request.scope.get("server") or ("", 0)
    address = without_name(host, server[0])
    return f"http://{address}{target_of(request.scope)}" if address else ""


def _status_and_error(error: Exception) -> tuple[int, CalabashError]:
    if isinstance(error, CalabashError):
        return _STATUS.get(error.reason, 401 if isinstance(error, SignedOutError) else 409), error
    if isinstance(error, HTTPException):
        reason = Reason.NOT_FOUND if error.status_code == 404 else Reason.BAD_REQUEST
        return error.status_code, CalabashError(f"no such page ({error.detail})", reason=reason)
    log.error("a page failed unexpectedly", exc_info=error)
    return 500, CalabashError("internal error of the console", reason=Reason.CONFLICT, hint="see the pool's log")


async def _download(file: PageFile, shown: Mapping[str, Any], ending: str) -> Response:
    """Return the data of a page as a file for download, in one of its formats; ``ending`` ends the file name."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", file.name(shown))[:100] or "page"
    headers = {"content-disposition": f'attachment; filename="{name}.{ending}"'}
    return Response(await asyncio.to_thread(file.write, shown), media_type=file.media_type, headers=headers)


async def _fields(request: Seen) -> dict[str, str]:
    """Return the fields of a posted form; of several fields with one name, the last.

    Raises:
        CalabashError: BAD_REQUEST if the body is not a form or has more than FIELDS_MAX fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise CalabashError(f"the request body is {kind[:80] or 'of no type'}, not a form", reason=Reason.BAD_REQUEST)
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        raise CalabashError(
            f"the form cannot be parsed or has more than {FIELDS_MAX} fields", reason=Reason.BAD_REQUEST
        ) from None
