"""Generator of the OpenAPI 3.1 document of the API from its routes and message types.

The gateway serves the document, and the reference documentation contains it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from calabash.api import endpoints, replies
from calabash.api.route import Route
from calabash.api.routes import ROUTES

REF = "#/components/schemas/{name}"
# Errors that every route may return.
_FAILURES = {
    "401": "The token is missing, unknown, expired or revoked.",
    "403": "The requesting user is not permitted to do this.",
    "429": "Too many requests; `Retry-After` is the number of seconds to wait.",
    "default": "The request failed.",
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document as JSON values."""
    shapes = [s for route in ROUTES for s in (route.body, route.query, route.reply) if s]
    _, components = msgspec.json.schema_components([*dict.fromkeys(shapes), replies.Failure], ref_template=REF)
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Calabash pool",
            "version": "v1",
            "description": "API of a Calabash pool. Requests over its Unix socket are authenticated by the user ID of the"
            " process, requests over TCP by a token.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [
            {"url": "/", "description": "The gateway."},
            {"url": "http://pool", "description": "The Unix socket $CALABASH_HOME/pool.sock, without a token."},
        ],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Token of `calabash user token create`."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "calabash_session",
                    "description": "Session of the web console. Requests that change something also need the header"
                    " X-CSRF-Token.",
                },
            },
        },
    }
    plain: dict[str, Any] = json.loads(json.dumps(document).replace("\\\\Z", "$"))  # ECMA's regular expressions
    return plain


def _operation(route: Route[Any]) -> dict[str, Any]:
    words = [route.method.lower(), *(w.strip("{}") for w in route.path.split("/")[2:])]
    operation: dict[str, Any] = {
        "operationId": "_".join(words),
        "summary": route.summary + ("; administrators only" if route.administrators else ""),
        "parameters": [
            {"name": w.strip("{}"), "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for w in route.path.split("/")
            if w.startswith("{")
        ],
    }
    if route.query:
        _, components = msgspec.json.schema_components([route.query], ref_template=REF)
        shown = components[route.query.__name__]
        for name, field in shown["properties"].items():
            required = name in shown.get("required", [])
            operation["parameters"].append({"name": name, "in": "query", "required": required, "schema": field})
    if route.body:
        content = {"application/json": {"schema": _reference(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = {
        str(route.status): {"description": route.note or route.summary, "content": _content(route.reply)},
        **(
            {"304": {"description": "The reply that If-None-Match names has not changed."}}
            if route.method == "GET"
            else {}
        ),
        **{status: {"description": text, "content": _content(replies.Failure)} for status, text in _FAILURES.items()},
    }
    if route.endpoint is endpoints.CREATE_SESSION:
        operation["security"] = [{}, {"token": []}]
    return operation


def _content(shape: type) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(shape)}}


def _reference(shape: type) -> dict[str, str]:
    return {"$ref": REF.format(name=shape.__name__)}
