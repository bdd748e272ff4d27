"""Generate the chart's files that follow from the product, with placeholders for values of an installation.

The files are the webhook configurations of admission, the kinds of owners that it may read, kube-scheduler's
configuration, the definitions of tenant networks, and the part of the values' schema that describes gang owners.
``python -m tools.chart`` rewrites them; ``--check`` exits 1 if one is not current.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import EXTENDED_MARK, mutating, validating
from calabash.kubernetes.gangs.owner import GangOwner
from calabash.kubernetes.gangs.table import read_kinds, table_with
from calabash.kubernetes.planner.serve.scheduler_config import scheduler_configuration
from calabash.model.network import KINDS
from tools.network_crds import definition

CHART = Path(__file__).resolve().parent.parent / "charts" / "calabash"
NAMESPACE, EXEMPT = "@NAMESPACE@", "@EXEMPT@"  # as templates/webhooks.yaml knows them
EXTENDER = "http://127.0.0.1:7070"  # in the pod of both
LEASE = "calabash-scheduler"
SCHEMA = CHART / "values.schema.json"
_DEFINITIONS = '\n  "definitions": '  # the last part of the schema, which is generated


def election(namespace: str) -> dict[str, Any]:
    """Return the leader election of the kube-schedulers, faster than their defaults because pods wait during an election."""
    return {
        "leaderElect": True,
        "leaseDuration": "10s",
        "renewDeadline": "6s",
        "retryPeriod": "1s",
        "resourceLock": "leases",
        "resourceName": LEASE,
        "resourceNamespace": namespace,
    }


def owner_rules() -> list[dict[str, Any]]:
    """Return the rules of the role of admission for the kinds between pods and their owners: each may be read."""
    groups: dict[str, list[str]] = {}
    for kind in read_kinds(table_with()).values():
        groups.setdefault(kind.group, []).append(kind.plural)
    return [{"apiGroups": [group], "resources": sorted(groups[group]), "verbs": ["get"]} for group in sorted(groups)]


def owner_definitions() -> dict[str, Any]:
    """Return the JSON schema of a gang owner and of its parts, by name, with regular expressions that Helm reads."""
    (_, found) = msgspec.json.schema_components((GangOwner,), ref_template="#/definitions/{name}")
    return {name: _for_helm(part) for name, part in sorted(found.items())}


def _for_helm(part: Any) -> Any:
    if isinstance(part, list):
        return [_for_helm(one) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {name: _for_helm(value) for name, value in part.items() if name not in ("title", "default")}
    if isinstance(kept.get("description"), str):
        kept["description"] = kept["description"].partition("\n")[0]
    if isinstance(kept.get("pattern"), str):
        kept["pattern"] = kept["pattern"].replace("\\A", "^").replace("\\Z", "$")
    return kept


def schema() -> str:
    """Return the schema of the values, with the definitions of gang owners as its last part."""
    written = SCHEMA.read_text().partition(_DEFINITIONS)[0]
    definitions = json.dumps(owner_definitions(), indent=2).replace("\n", "\n  ")
    return f"{written}{_DEFINITIONS}{definitions}\n}}\n"


def files() -> dict[Path, str]:
    """Return the generated files of the chart: path to content."""
    settings = AdmissionSettings(namespace=NAMESPACE, exempt_namespaces=(EXEMPT,), extended_resources=(EXTENDED_MARK,))
    made = {
        "mutating-webhooks": mutating(settings),
        "validating-webhooks": validating(settings),
        "scheduler": scheduler_configuration(EXTENDER, leaderElection=election(NAMESPACE)),
        "owner-rules": owner_rules(),
    }
    found = {CHART / "files" / f"{name}.json": json.dumps(content, indent=1) + "\n" for name, content in made.items()}
    found[SCHEMA] = schema()
    for noun in KINDS:
        content = definition(noun)
        found[CHART / "crds" / f"{content['metadata']['name']}.yaml"] = yaml.safe_dump(
            content, sort_keys=False, width=120
        )
    return found


def main() -> int:
    """Write or check the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for path, content in files().items():
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        elif not path.exists() or path.read_text() != content:
            stale.append(path)
    for path in stale:
        print(f"error: {path.relative_to(CHART.parent.parent)} is not current\nhint: make docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
