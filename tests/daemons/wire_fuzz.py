"""Seeded random generator of HTTP requests as bytes: valid, malformed and hostile ones."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from calabash.api.routes import ROUTES
from calabash.gateway.web.pages import ACTIONS, PAGES

NEVER = ("/v1/shutdown", "/v1/sessions/current", "/v1/tokens")  # end the pool or the token that is used
METHODS = (
    "GET",
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "PATCH",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "PRI",
    "X" * 300,
)
VERSIONS = ("HTTP/1.1",) * 12 + ("HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1 ", "http/1.1", "HTTP/1.11", "")
WORDS = (
    b"x",
    b"0",
    b"default",
    b"%00",
    b"%ff%fe",
    b"%2e%2e",
    b"..",
    b"%2F",
    b"%",
    b"%zz",
    b"\xff\xfe",
    b"\xc3\xa4",
    b"a b",
    b"%0d%0aX:%20y",
    b"x" * 3000,
    b"%ED%A0%80",
    b"\x00",
    b"\t",
    b"*",
    b"99999999999999999999",
    b"-1",
)
TARGETS = (
    b"*",
    b"",
    b"/",
    b"//",
    b"//v1/me",
    b"/v1",
    b"/v1/",
    b"http://evil.example/v1/me",
    b"http://127.0.0.1/v1/me",
    b"/v1/me?" + b"x" * 5000,
    b"/" + b"x" * 40_000,
    b"/v1/me#x",
    b"/static/../v1/me",
    b"/static/%2e%2e/%2e%2e/etc/passwd",
    b"/login?%00=%ff&x",
    b"\\v1\\me",
    b"/v1/watch?kinds=%ff,,",
    b"/v1/changes?after=-1&wait_s=nan",
    b"/v1/changes?after=1e999&wait_s=-5",
    b"example.org:443",
)
VALUES = (
    b"",
    b"x",
    b"\xff\xfe",
    b"\xe2\x82\xac",
    b"x" * 9000,
    b"a\tb",
    b"a,b",
    b"0",
    b"-1",
    b"\x00",
    b"\x7f",
    b'"',
    b"=;",
)
TYPES = (
    b"application/json",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data",
    b"text/html; charset=\xff",
    b"/",
)
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"{",
    b'"\xff\xfe"',
    b'"\\ud800"',
    b'{"name": "\\ud800"}',
    b"[" * 30_000,
    b'{"a":' * 5000,
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b"a=b&c=%ff&d=%ED%A0%80",
    b"&" * 2000,
    b"\x00" * 100,
    b"{}" * 40_000,
    b'{"name": null, "name": 1}',
    b"\xef\xbb\xbf{}",
)


Proved = Callable[[str, str, bytes], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Bytes to send over one connection.

    Args:
        parts: the bytes, sent one part after the other.
        end: action of the client afterwards: read, close, reset, or shut down its sending side.
    """

    parts: tuple[bytes, ...]
    end: str


class WireFuzz:
    """Generator of requests to one gateway.

    Args:
        host: value of the header Host in valid requests.
        tokens: valid tokens.
        proved: returns the headers that authenticate a request of a console session, from its method, target and body.
    """

    def __init__(self, seed: int, host: str, tokens: tuple[str, ...], proved: Proved) -> None:
        self._proved = proved
        self._random = random.Random(seed)
        self._host = host.encode()
        self._tokens = tuple(token.encode() for token in tokens)
        self._clean = True

    def exchange(self) -> Exchange:
        """Return the next exchange."""
        some = self._random
        self._clean = some.random() < 0.6  # as HTTP allows it, whatever it says
        data = b"".join(self._request() for _ in range(some.choice((1, 1, 1, 1, 2, 3, 8))))
        kind = some.random() + self._clean
        if kind < 0.12:
            data = data[: some.randrange(len(data) + 1)]
        elif kind < 0.2:
            at = some.randrange(len(data) + 1)
            data = data[:at] + some.randbytes(some.choice((1, 2, 40))) + data[at:]
        elif kind < 0.25:
            data = some.choice(
                (some.randbytes(200), b"\x16\x03\x01\x02\x00\x01", b"\r\n" * 50, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            )
        cuts = sorted(some.randrange(len(data) + 1) for _ in range(some.choice((0, 0, 0, 1, 3))))
        edges = [0, *cuts, len(data)]
        parts = tuple(data[a:b] for a, b in itertools.pairwise(edges) if b > a)
        return Exchange(parts=parts, end=some.choice(("read", "read", "read", "read", "close", "reset", "shut")))

    def _request(self) -> bytes:
        some = self._random
        if some.random() < 0.2:
            return self._of_session()
        headers = self._headers()
        body, framing = self._body()
        clean = self._clean
        method, target = self._asked()
        version = "HTTP/1.1" if clean else some.choice(VERSIONS)
        lines = [b" ".join((method.encode(), target, version.encode()))]
        lines += some.sample(headers, len(headers)) + framing
        end = b"\r\n" if clean else some.choice((b"\r\n",) * 12 + (b"\n", b"\r"))
        return end.join([*lines, b"", b""]) + body

    def _of_session(self) -> bytes:
        """Return a request of a browser that is logged in to the console."""
        some, clean, self._clean = self._random, self._clean, True
        known = [("GET", page.path) for page in PAGES] + [("POST", action.path) for action in ACTIONS]
        method, path = some.choice(known)
        target = self._filled(path) + self._query()
        self._clean = clean
        fields = (
            "name",
            "id",
            "tenant",
            "deserved",
            "guarantee",
            "keep_programs",
            "limit",
            "command",
            "scopes",
            "kind",
            "devices",
            "x",
            "memory_mib",
        )
        values = ("", "x", "-1", "1e999", "%00", "%ff%fe", "%ED%A0%80", "9" * 400, "a/b", "nan", "%E2%80%AE")
        pairs = "&".join(f"{some.choice(fields)}={some.choice(values)}" for _ in range(some.randrange(6)))
        body = pairs.encode() if method == "POST" else b""
        headers = {"host": self._host.decode(), **self._proved(method, target.decode("latin-1"), body)}
        headers["content-length"] = str(len(body))
        if some.random() < 0.2:
            headers["content-type"] = "text/plain"
        lines = [f"{name}: {value}".encode() for name, value in headers.items()]
        return b"\r\n".join([b"%s %s HTTP/1.1" % (method.encode(), target), *lines, b"", b""]) + body

    def _asked(self) -> tuple[str, bytes]:
        """Return a method and a target."""
        some = self._random
        if some.random() < 0.15:
            return some.choice(METHODS), self._pick(TARGETS)
        known = [(r.method, r.path) for r in ROUTES if r.path not in NEVER]
        known += [("GET", path) for path in ("/v1/watch", "/v1/openapi.json", "/login", *(page.path for page in PAGES))]
        known += [
            ("POST", path) for path in ("/v1/sessions", "/login", "/logout", *(action.path for action in ACTIONS))
        ]
        method, path = some.choice(known)
        return some.choice(METHODS) if some.random() < 0.1 else method, self._filled(path) + self._query()

    def _filled(self, path: str) -> bytes:
        words = [self._pick(WORDS) if "{" in word else word.encode() for word in path.split("/")]
        if self._random.random() < 0.1:
            words.append(self._pick(WORDS))
        return b"/".join(words)

    def _query(self) -> bytes:
        names = (b"after", b"limit", b"all", b"format", b"kinds", b"from", b"page", b"state", b"by", b"x")
        some = self._random
        pairs = [some.choice(names) + b"=" + self._pick(WORDS) for _ in range(some.choice((0, 0, 1, 3)))]
        return b"?" + b"&".join(pairs) if pairs else b""

    def _pick(self, values: Sequence[bytes]) -> bytes:
        """Return one of the values; for a request that is to be valid HTTP, one that HTTP permits in this place."""
        while True:
            found = self._random.choice(values)
            if not self._clean or (found and all(0x20 < byte < 0x7F for byte in found)):
                return found

    def _headers(self) -> list[bytes]:
        some, found = self._random, list[bytes]()
        chance = some.random()
        if chance < 0.85 or self._clean:
            found.append(b"Host: " + self._host)
        if chance > (0.97 if self._clean else 0.8):
            found.append(
                b"Host: " + some.choice((b"evil.example", b"[::1", b"localhost:x", b"", b"\xff", b"127.0.0.1:1:2"))
            )
        chance = some.random()
        if chance < 0.8:
            found.append(b"Authorization: Bearer " + some.choice(self._tokens))
        if chance > (0.9 if self._clean else 0.75):
            found.append(b"Authorization: " + self._pick((*VALUES, b"Basic YTpi", b"Bearer cal_aaaaaaaaaa_xxxxxxxxxx")))
        if some.random() < 0.15:
            found.append(some.choice((b"Expect: 100-continue", b"Expect: 200-ok", b"Expect: 100-continue, x")))
        if some.random() < 0.15:
            found += [b"Connection: Upgrade", b"Upgrade: " + some.choice((b"websocket", b"h2c", b"\xff", b""))]
        if some.random() < 0.1:
            found += [b"Connection: " + some.choice((b"close", b"keep-alive", b"\xff"))]
        names: tuple[bytes, ...] = (
            b"If-None-Match",
            b"Last-Event-ID",
            b"Accept",
            b"Cookie",
            b"X-Forwarded-For",
            b"X-Forwarded-Proto",
            b"Origin",
        )
        names += (b"calabash-session", b"calabash-proof", b"X", b"TE", b"Range", b"x" * 500)
        names += () if self._clean else (b"\xffname", b"na me", b"")
        for _ in range(some.choice((0, 0, 1, 2, 200 if some.random() < 0.05 else 3))):
            found.append(
                some.choice(names) + (b": " if self._clean else some.choice((b": ", b":", b" : "))) + self._pick(VALUES)
            )
        if not self._clean and some.random() < 0.05:
            found.append(b" folded")
        return found

    def _body(self) -> tuple[bytes, list[bytes]]:
        """Return a body and the headers that give its length, correctly or not."""
        some = self._random
        if some.random() < 0.4:
            return b"", []
        words = ("name", "id", "token", "user", "kind", "deserved", "command", "devices", "tenant", "x")
        values: tuple[object, ...] = (
            None,
            True,
            -1,
            1e308,
            10**30,
            "",
            "x" * 500,
            "\x00",
            "\u202e",
            [],
            {},
            [[]],
            {"x": {}},
        )
        made = {some.choice(words): some.choice(values) for _ in range(some.randrange(5))}
        body = some.choice((*BODIES, json.dumps(made).encode(), json.dumps(made).encode()))
        framing = [b"Content-Type: " + some.choice(TYPES)] if some.random() < 0.8 else []
        length = b"Content-Length: "
        kind = some.randrange(9 if self._clean else 14)
        if kind < 6:
            framing.append(length + b"%d" % len(body))
        elif kind < 9:
            framing.append(b"Transfer-Encoding: chunked")
            size = max(1, len(body) // 3)
            chunks = [body[at : at + size] for at in range(0, len(body), size)]
            extra = b"" if self._clean else some.choice((b"", b"", b";x=y", b";" + b"x" * 20_000, b" "))
            body = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extra, chunk) for chunk in chunks)
            ends = (b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"", b"-1\r\n", b"zz\r\n", b"f" * 30 + b"\r\n")
            body += some.choice(ends[: 2 if self._clean else None])
        elif kind == 9:
            framing += [length + b"%d" % len(body), length + b"%d" % (len(body) + 1)]
        elif kind == 10:
            framing += [length + b"%d" % len(body), b"Transfer-Encoding: chunked"]
        elif kind == 11:
            framing.append(
                length + some.choice((b"-1", b"+1", b"1,1", b"\xb2", b"9" * 30, b"", b"0x1", b"1 1", b"70000", b"5"))
            )
        elif kind == 12:
            framing.append(
                b"Transfer-Encoding: " + some.choice((b"gzip", b"chunked, chunked", b"gzip, chunked", b"\xff", b""))
            )
        return body, framing
