"""The application between the declared endpoints and Starlette: paths, methods, arguments, replies and errors."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.asgi import Reply, ask

from calabash.api.endpoints import Endpoint
from calabash.transport.web.application import (
    HTTPException,
    Request,
    Response,
    State,
    WebApplication,
    json_response,
)
from calabash.transport.web.routing import get, handles


class Shown(msgspec.Struct):
    """Reply that shows what a handler has received."""

    text: str
    values: dict[str, str] = {}


@handles(Endpoint("GET", "/v1/things"))
async def list_things(request: Request) -> Shown:
    return Shown(text=request.scope["path"], values=request.query)


@handles(Endpoint("POST", "/v1/things", status=201))
async def make_thing(request: Request) -> Shown:
    return Shown(text=(await request.body()).decode())


@handles(Endpoint("DELETE", "/v1/queues/{name}", slashes=True))
async def delete_queue(state: State, request: Request, name: str) -> Shown:
    return Shown(text=name, values={"word": state.word, "template": request.scope["path_template"]})


@handles(Endpoint("GET", "/v1/failure"))
async def fail(request: Request) -> Shown:
    raise OSError(5, "broken")


@get("/metrics", media_type="text/plain; version=0.0.4")
async def metrics(request: Request) -> str:
    return "up 1\n"


@get("/page")
async def page(request: Request) -> Response:
    return Response("ü", status_code=303, media_type="text/html", headers={"Location": "/"})


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return json_response(error.detail, error.status_code)
    return json_response(f"{type(error).__name__} {request.scope['path']}", 500)


async def _before(request: Request) -> None:
    if request.headers.get("refuse") == request.scope["path_template"]:
        raise PermissionError


@pytest.fixture
def application() -> WebApplication:
    """Return an application with all handlers of this module."""
    handlers = [list_things, make_thing, delete_queue, fail, metrics, page]
    return WebApplication(handlers, failed=_failed, before=_before, state={"word": "w"})


def _shown(reply: Reply) -> tuple[int, Any]:
    return reply.status, reply.json()


def test_reply_is_the_result_in_json_with_the_status_of_the_endpoint(application: WebApplication) -> None:
    body = [{"type": "http.request", "body": part, "more_body": part != b"c"} for part in (b"a", b"b", b"c")]
    reply = ask(application, "POST", "/v1/things", messages=body)
    assert reply == Reply(
        status=201,
        headers={"content-type": "application/json", "content-length": "26"},
        body=b'{"text":"abc","values":{}}',
    )


def test_text_and_whole_responses_are_sent_as_they_are(application: WebApplication) -> None:
    text = ask(application, "GET", "/metrics")
    assert (text.headers["content-type"], text.body) == ("text/plain; version=0.0.4; charset=utf-8", b"up 1\n")
    whole = ask(application, "GET", "/page")
    assert (whole.status, whole.headers["location"], whole.body.decode()) == (303, "/", "ü")
    assert whole.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("path", ["/v1/things", "/v1/things/", "//v1//things"])
def test_path_with_empty_segments_is_served_as_the_path_without_them(application: WebApplication, path: str) -> None:
    assert _shown(ask(application, "GET", path)) == (200, {"text": "/v1/things", "values": {}})


@pytest.mark.parametrize(
    ("query", "values"),
    [
        (b"a=1&a=2&b=", {"a": "1", "b": ""}),
        (b"a", {"a": ""}),
        (b"a=%C3%BC+%20&b=%ff", {"a": "ü  ", "b": "\ufffd"}),
        (b"a=1;b=2", {"a": "1;b=2"}),
    ],
)
def test_of_several_parameters_with_one_name_the_first_counts(
    application: WebApplication, query: bytes, values: dict[str, str]
) -> None:
    assert ask(application, "GET", "/v1/things", query=query).json()["values"] == values


def test_handler_gets_the_arguments_that_it_has(application: WebApplication) -> None:
    reply = ask(application, "DELETE", "/v1/queues/team/night")
    assert reply.json() == {"text": "team/night", "values": {"word": "w", "template": "/v1/queues/{name}"}}


@pytest.mark.parametrize("method", ["PUT", "HEAD", "PATCH", "DANCE"])
def test_method_without_a_handler_is_refused(application: WebApplication, method: str) -> None:
    assert _shown(ask(application, method, "/v1/things")) == (405, "Method Not Allowed")


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/things/1", "/v1/queues", "/"])
def test_unknown_path_is_not_found(application: WebApplication, path: str) -> None:
    assert _shown(ask(application, "GET", path)) == (404, "Not Found")


def test_options_names_the_methods_of_a_path(application: WebApplication) -> None:
    reply = ask(application, "OPTIONS", "/v1/things")
    assert reply == Reply(status=204, headers={"allow": "GET, OPTIONS, POST"}, body=b"")
    assert ask(application, "OPTIONS", "/v1/nothing").status == 404


def test_check_before_a_handler_knows_the_endpoint_and_may_refuse(application: WebApplication) -> None:
    for method in ("DELETE", "OPTIONS"):
        reply = ask(application, method, "/v1/queues/a/b", headers={"refuse": "/v1/queues/{name}"})
        assert _shown(reply) == (500, "PermissionError /v1/queues/a/b")
    assert ask(application, "GET", "/v1/things", headers={"refuse": "/v1/queues/{name}"}).status == 200


def test_error_of_a_handler_becomes_a_response(application: WebApplication) -> None:
    assert _shown(ask(application, "GET", "/v1/failure")) == (500, "OSError /v1/failure")


@pytest.mark.parametrize("host", ["localhost", "[::1]:80", "a_b.example:8443", "pool%20x", ""])
def test_request_with_a_valid_host_is_served(application: WebApplication, host: str) -> None:
    assert ask(application, "GET", "/v1/things", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", ["a b", "x/y", 'a"b', "a<b", "\xff"])
def test_request_with_an_invalid_host_is_refused(application: WebApplication, host: str) -> None:
    assert _shown(ask(application, "GET", "/v1/things", headers={"Host": host})) == (400, "Invalid host header")


def test_body_that_ends_early_is_an_error_of_the_client(application: WebApplication) -> None:
    begun = [{"type": "http.request", "body": b"x", "more_body": True}]
    status, text = _shown(ask(application, "POST", "/v1/things", messages=begun))
    assert (status, text) == (400, "the client disconnected before the end of the body")


def test_cancelled_request_gets_no_response() -> None:
    @get("/")
    async def wait(request: Request) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        ask(WebApplication([wait], failed=_failed), "GET", "/")
