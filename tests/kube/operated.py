"""The server of an installed chart, used as operators do: by the product's command in its pod, and with API tokens."""

from __future__ import annotations

import json
from typing import Any

from tests.kube.charts import NAMESPACE
from tests.kube.cluster import Cluster

_ASK = """
import json, sys, urllib.error, urllib.request
token = sys.stdin.readline().strip()
request = urllib.request.Request("http://127.0.0.1:7432" + sys.argv[1])
if token:
    request.add_header("Authorization", "Bearer " + token)
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
"""


class OperatedCluster:
    """The server that the chart installed in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def _in_its_pod(self, *words: str, text: str = "") -> str:
        return self._cluster.kubectl(
            "exec", "--stdin", f"--namespace={NAMESPACE}", "deployment/calabash-server", "--", *words, text=text or "\n"
        )

    def run(self, *words: str) -> str:
        """Run a product command as the server's administrator and return its output."""
        return self._in_its_pod("calabash", *words)

    def json_of(self, *words: str) -> Any:
        """Run a product command with JSON output and return the parsed output."""
        return json.loads(self.run(*words, "-o", "json"))

    def ask(self, path: str, token: str = "") -> tuple[int, str]:
        """Send a GET request to the server's gateway; return the status and the body. ``token`` "" sends no token."""
        status, text = json.loads(self._in_its_pod("python3", "-I", "-c", _ASK, path, text=f"{token}\n"))
        return int(status), str(text)

    def list(self, path: str, token: str) -> list[dict[str, Any]]:
        """Return the items of a list that the token's user may read."""
        status, text = self.ask(path, token)
        assert status == 200, text
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    def member(self, user: str, tenant: str) -> str:
        """Create a user who is a member of a tenant; return the user's token."""
        self.run("user", "create", user)
        self.run("user", "role", user, "member", "--tenant", tenant)
        return self.run("user", "token", "create", "--user", user).strip()
