"""Replies that send the browser to another page of this console, never to another site."""

from __future__ import annotations

from calabash.gateway.sessions.store import LOCATION_HEADER
from calabash.transport.web.application import Request, Response

Seen = Request
HTML = "text/html"


def go(to: str) -> Response:
    """Return the reply that tells the script of a page which page to load next."""
    return Response("", status_code=200, media_type=HTML, headers={LOCATION_HEADER: to})


def redirect(to: str) -> Response:
    """Return an HTTP redirect."""
    return Response("", status_code=303, media_type=HTML, headers={"location": to})


def local(path: str) -> str:
    """Return the path if it is a page of this console, else "/"."""
    plain = path.isprintable() and "\\" not in path
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"
