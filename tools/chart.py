"""Writes what the chart has from the product itself: the webhook configurations, with marks where it is installed.

``python -m tools.chart`` rewrites the files; ``--check`` exits 1 when one is not current.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from calabash.kubernetes.admission.settings import AdmissionSettings
from calabash.kubernetes.admission.webhooks import mutating, validating

CHART = Path(__file__).resolve().parent.parent / "charts" / "calabash"
NAMESPACE, EXEMPT = "@NAMESPACE@", "@EXEMPT@"  # as templates/webhooks.yaml knows them


def files() -> dict[Path, str]:
    """What belongs into the chart: path to content."""
    settings = AdmissionSettings(namespace=NAMESPACE, exempt_namespaces=(EXEMPT,))
    made = {"mutating": mutating(settings), "validating": validating(settings)}
    return {
        CHART / "files" / f"{name}-webhooks.json": json.dumps(content, indent=1) + "\n"
        for name, content in made.items()
    }


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
