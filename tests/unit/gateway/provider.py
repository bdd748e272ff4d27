"""OpenID provider on a port of this machine, whose answers tests can forge."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

CLIENT = "console"
SECRET = "a secret of the client"


def ec_key(name: str = "one") -> tuple[Any, dict[str, Any]]:
    """Return a private key, and its public key as a JWK."""
    key = ec.generate_private_key(ec.SECP256R1())
    shown = jwt.get_algorithm_by_name("ES256").to_jwk(key.public_key(), as_dict=True)
    return key, {**shown, "kid": name, "use": "sig", "alg": "ES256"}


def rsa_key(bits: int, name: str = "rsa") -> tuple[Any, dict[str, Any]]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    shown = jwt.get_algorithm_by_name("RS256").to_jwk(key.public_key(), as_dict=True)
    return key, {**shown, "kid": name, "use": "sig"}


class LyingProvider:
    """Provider with forged answers: ``claims`` override those of an honest token, ``token`` replaces it.

    ``described`` overrides fields of the metadata document.
    """

    def __init__(self) -> None:
        self.key, shown = ec_key()
        self.keys = [shown]
        self.kid: str | None = "one"
        self.algorithm = "ES256"
        self.claims: dict[str, Any] = {}
        self.left_out: set[str] = set()
        self.described: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {"sub": "4711", "groups": ["gpu"]}
        self.token = ""
        self.large = b""
        self.issuer = ""
        self.asked: list[str] = []
        self.codes: dict[str, Mapping[str, str]] = {}

    def authorize(self, url: str) -> str:
        """Log a user in at the URL to which the browser was sent; return the code for the redirect back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = f"code{len(self.codes)}"
        self.codes[code] = asked
        return code

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        self.asked.append(f"{method} {path}")
        if self.large:
            return 200, self.large
        if path == "/.well-known/openid-configuration":
            return 200, json.dumps({**self._description(), **self.described}).encode()
        if path == "/keys":
            return 200, json.dumps({"keys": self.keys}).encode()
        if path == "/userinfo" and headers.get("authorization") == "Bearer access":
            return 200, json.dumps(self.userinfo).encode()
        if (method, path) == ("POST", "/token"):
            return self._exchange(headers, {n: v[0] for n, v in parse_qs(body.decode()).items()})
        return 404, b"{}"

    def _description(self) -> dict[str, Any]:
        ends = {"authorization": "auth", "token": "token", "userinfo": "userinfo", "end_session": "end"}
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_response_iss_parameter_supported": True,
            **{f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in ends.items()},
        }

    def _exchange(self, headers: Mapping[str, str], form: Mapping[str, str]) -> tuple[int, bytes]:
        asked = self.codes.pop(form.get("code", ""), None)
        pair = base64.b64encode(f"{CLIENT}:{SECRET.replace(' ', '%20')}".encode()).decode()
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or headers.get("authorization") != f"Basic {pair}" or proof != asked["code_challenge"]:
            return 400, b'{"error": "invalid_grant"}'
        now = int(time.time())
        honest = {
            "iss": self.issuer,
            "sub": "4711",
            "aud": CLIENT,
            "exp": now + 300,
            "iat": now,
            "nonce": asked["nonce"],
        }
        claims = {name: value for name, value in {**honest, **self.claims}.items() if name not in self.left_out}
        token = self.token or jwt.encode(
            claims, self.key, self.algorithm, headers={} if self.kid is None else {"kid": self.kid}
        )
        return 200, json.dumps({"id_token": token, "access_token": "access", "token_type": "Bearer"}).encode()


@contextmanager
def lying_provider() -> Iterator[LyingProvider]:
    """Run a provider that listens until the context ends."""
    provider = LyingProvider()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            named = {name.lower(): value for name, value in self.headers.items()}
            status, content = provider.answer(self.command, self.path, named, body)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._any()

        def do_POST(self) -> None:
            self._any()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.issuer = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()


def back(state: str, code: str, issuer: str) -> str:
    """Return the path to which the provider redirects the browser."""
    return f"/login/oidc/callback?{urlencode({'state': state, 'code': code, 'iss': issuer})}"
