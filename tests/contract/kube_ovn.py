"""Kube-OVN's own types and schemas of custom resources, from its Go module.

A Go program that imports the types checks resources; the schemas are files of the same module. Go fetches and builds it once,
into its own cache.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import jsonschema_rs
import pytest
import yaml
from tests.contract.go_programs import UnavailableError, program, run_go

MODULE = "kube-ovn"
NAME = "github.com/kubeovn/kube-ovn"
SCHEMAS = "charts/kube-ovn-v2/crds/kube-ovn-crd.yaml"


def _absent(why: str) -> NoReturn:
    """Skip the test, or fail if Kube-OVN is required."""
    if os.environ.get("CALABASH_NET") == "required":
        pytest.fail(f"Kube-OVN's schemas cannot be had: {why}")
    pytest.skip(f"Kube-OVN's schemas cannot be had: {why}")


@cache
def reader() -> Path:
    """Return the program that reads custom resources with Kube-OVN's types."""
    try:
        return program(MODULE)
    except UnavailableError as error:
        _absent(str(error))


def wrong_types(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the errors of Kube-OVN's types, one for each resource that they do not accept."""
    lines = [json.dumps(document) for document in documents]
    done = subprocess.run([reader()], input="\n".join(lines), capture_output=True, text=True, timeout=60, check=True)
    said = done.stdout.splitlines()
    assert len(said) == len(lines)
    return [f"{answer}: {line}" for line, answer in zip(lines, said, strict=True) if answer != "ok"]


@cache
def schemas() -> dict[str, jsonschema_rs.Draft7Validator]:
    """Return the schemas by kind; strict, because an API server would drop a field that a schema does not name."""
    reader()
    text = (Path(run_go(MODULE, "list", "-m", "-f", "{{.Dir}}", NAME)) / SCHEMAS).read_text()
    found = {}
    for definition in yaml.safe_load_all(text):
        if definition:
            spec = definition["spec"]
            (version,) = (v for v in spec["versions"] if v["name"] == "v1")
            schema = _closed(version["schema"]["openAPIV3Schema"], top=True)
            found[spec["names"]["kind"]] = jsonschema_rs.Draft7Validator(schema)
    return found


def _closed(schema: dict[str, Any], *, top: bool = False) -> dict[str, Any]:
    properties = {name: _closed(inner) for name, inner in schema.get("properties", {}).items()}
    found = {key: value for key, value in schema.items() if not key.startswith("x-")}
    if "items" in found:
        found["items"] = _closed(found["items"])
    if properties:
        if top:
            metadata = properties.get("metadata", {}).get("properties", {})
            properties |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
            properties["metadata"] = {"type": "object", "properties": {"name": metadata.get("name", {})}}
        found |= {"properties": properties, "additionalProperties": False}
    return found


def wrong_shapes(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the errors of the published schemas, for resources that they do not accept."""
    found = []
    for document in documents:
        errors = schemas()[document["kind"]].iter_errors(document)
        found += [f"{document['kind']} {document['metadata']['name']}: {error.message}" for error in errors]
    return found
