"""Software bill of materials of an image (CycloneDX 1.6), from Debian control files and Python metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools.debian import DebianPackage


def python_packages(directory: Path) -> list[dict[str, Any]]:
    """Return the Python distributions that are installed in a directory, as components."""
    found = []
    for path in sorted(directory.glob("*.dist-info/METADATA")):
        said = HeaderParser().parsestr(path.read_text(errors="replace"))
        name, version = said["Name"], said["Version"]
        component = {
            "type": "library",
            "bom-ref": f"pypi/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{quote(name.lower().replace('_', '-'))}@{quote(version)}",
        }
        licence = said["License-Expression"]
        if licence:
            component["licenses"] = [{"expression": licence}]
        elif said["License"] and "\n" not in said["License"]:
            component["licenses"] = [{"license": {"name": said["License"]}}]
        found.append(component)
    return found


def debian_packages(packages: Iterable[DebianPackage], release: str) -> list[dict[str, Any]]:
    """Return the packages of a Debian release (``12``) as components."""
    return [
        {
            "type": "library",
            "bom-ref": f"deb/{package.name}@{package.version}",
            "name": package.name,
            "version": package.version,
            "purl": f"pkg:deb/debian/{quote(package.name)}@{quote(package.version)}"
            f"?arch={package.architecture}&distro=debian-{release}&upstream={quote(package.source)}",
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(package.file.read_bytes()).hexdigest()}],
        }
        for package in packages
    ]


def document(name: str, version: str, components: Iterable[dict[str, Any]]) -> str:
    """Return the document; the same components give the same text."""
    listed = sorted(components, key=lambda component: component["bom-ref"])
    subject = {"type": "container", "bom-ref": f"image/{name}@{version}", "name": name, "version": version}
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": listed,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": [c["bom-ref"] for c in listed]}],
    }
    return json.dumps(content, indent=1) + "\n"
