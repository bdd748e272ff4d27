"""Where a browser is sent: to a page of ours, whatever was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar import Request, Response

Seen = Request[Any, Any, Any]
HTML = "text/html"


def go(request: Seen, to: str, headers: Mapping[str, str] | None = None) -> Response[str]:
    """To another page; htmx wants to be told in its own way."""
    if request.headers.get("hx-request") == "true":
        return Response("", status_code=200, media_type=HTML, headers={"hx-redirect": to, **(headers or {})})
    return Response("", status_code=303, media_type=HTML, headers={"location": to, **(headers or {})})


def here_of(request: Seen) -> str:
    """The page that was asked for, where it can be asked for again."""
    return str(request.scope["path"]) if request.scope["method"] == "GET" else "/"


def next_of(request: Seen) -> str:
    """The page that a login leads to."""
    return local(request.query_params.get("next", ""))


def local(path: str) -> str:
    """A page of ours, whatever was asked for: never another site."""
    plain = path.isprintable() and "\\" not in path
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"
