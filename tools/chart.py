"""Generate the chart's files that follow from the product, with placeholders for values of an installation.

The files are the webhook configurations of admission, kube-scheduler's configuration and the definitions of tenant
networks. ``python -m tools.chart`` rewrites them; ``--check`` exits 1 if one is not current.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import EXTENDED_MARK, mutating, validating
from calabash.kubernetes.planner.serve.scheduler_config import scheduler_configuration
from calabash.model.network import KINDS
from tools.network_crds import definition

CHART = Path(__file__).resolve().parent.parent / "charts" / "calabash"
NAMESPACE, EXEMPT = "@NAMESPACE@", "@EXEMPT@"  # as templates/webhooks.yaml knows them
EXTENDER = "http://127.0.0.1:7070"  # in the pod of both
LEASE = "calabash-scheduler"


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


def files() -> dict[Path, str]:
    """Return the generated files of the chart: path to content."""
    settings = AdmissionSettings(namespace=NAMESPACE, exempt_namespaces=(EXEMPT,), extended_resources=(EXTENDED_MARK,))
    made = {
        "mutating-webhooks": mutating(settings),
        "validating-webhooks": validating(settings),
        "scheduler": scheduler_configuration(EXTENDER, leaderElection=election(NAMESPACE)),
    }
    found = {CHART / "files" / f"{name}.json": json.dumps(content, indent=1) + "\n" for name, content in made.items()}
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
