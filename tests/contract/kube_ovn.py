"""Kube-OVN's own word on custom resources: its types, through a program of Go that imports them, and the schemas beside them in
the same module. Fetched by Go from where it fetches modules, built once, kept in Go's own cache."""

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
    """Skipped where it may be, and said; else a failure."""
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
    """What Kube-OVN's types say of each that they do not take."""
    lines = [json.dumps(document) for document in documents]
    done = subprocess.run([reader()], input="\n".join(lines), capture_output=True, text=True, timeout=60, check=True)
    said = done.stdout.splitlines()
    assert len(said) == len(lines)
    return [f"{answer}: {line}" for line, answer in zip(lines, said, strict=True) if answer != "ok"]


@cache
def schemas() -> dict[str, jsonschema_rs.Draft7Validator]:
    """By kind; strict: a field that a schema does not name would be dropped by an API server, so it is an error here."""
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
    """What the published schemas say of each that they do not take."""
    found = []
    for document in documents:
        errors = schemas()[document["kind"]].iter_errors(document)
        found += [f"{document['kind']} {document['metadata']['name']}: {error.message}" for error in errors]
    return found
