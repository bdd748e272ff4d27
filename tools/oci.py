"""OCI archives made from files: no registry and no container engine. The same input gives the same bytes.

tree = layer_of(directory)
write_archive(path, [Image("localhost/agent:1", (tree,), {"Entrypoint": ["/agent"]})])
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_KIND = "application/vnd.oci.image."
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Image:
    """An image: what pods call it, its layers (tar archives, compressed by gzip or not, lowest first), its settings (Env,
    Cmd, ...), when it was made, RFC 3339, if that is to be said, and for which machine."""

    reference: str
    layers: tuple[bytes, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    machine: str = field(default_factory=platform.machine)  # as ``uname -m`` says it


def architecture(machine: str = "") -> str:
    """A machine's, as images name it: this one's, or what ``uname -m`` says there."""
    machine = machine or platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def layer_of(tree: Path, under: str = "") -> bytes:
    """A layer with everything of a directory, owned by root, below ``under`` in the image; times and owners are not kept."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(tree, arcname=under or ".", filter=_plain)  # tarfile adds a directory's entries in order of their names
    return data.getvalue()


def packed(layer: bytes) -> bytes:
    """A layer compressed, the same each time."""
    return gzip.compress(layer, compresslevel=6, mtime=0)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def write_archive(path: Path, images: Iterable[Image]) -> Path:
    """Writes an OCI archive with these images; the path. Those of one reference are one image for several machines."""
    blobs: dict[str, bytes] = {}
    by_reference: dict[str, list[Image]] = {}
    for image in images:
        by_reference.setdefault(image.reference, []).append(image)
    listed = [_listed(several, blobs) for several in by_reference.values()]
    index = {"schemaVersion": 2, "mediaType": _KIND + "index.v1+json", "manifests": listed}
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps(index).encode())
        for digest, blob in blobs.items():
            _add(tar, "blobs/" + digest.replace(":", "/"), blob)
    return path


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _kept(data: bytes, kind: str, blobs: dict[str, bytes]) -> dict[str, Any]:
    blobs[_digest(data)] = data
    return {"mediaType": _KIND + kind, "digest": _digest(data), "size": len(data)}


def _listed(images: list[Image], blobs: dict[str, bytes]) -> dict[str, Any]:
    """What the archive's index says of a reference: its manifest, or an index of manifests by machine."""
    name = images[0].reference
    if len(images) == 1:
        listed = _manifest(images[0], blobs)
    else:
        manifests = [
            {**_manifest(image, blobs), "platform": {"architecture": architecture(image.machine), "os": "linux"}}
            for image in images
        ]
        index = {"schemaVersion": 2, "mediaType": _KIND + "index.v1+json", "manifests": manifests}
        listed = _kept(json.dumps(index).encode(), "index.v1+json", blobs)
    return {**listed, "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}}


def _manifest(image: Image, blobs: dict[str, bytes]) -> dict[str, Any]:
    def kept(data: bytes, kind: str) -> dict[str, Any]:
        return _kept(data, kind, blobs)

    layers = [kept(layer, "layer.v1.tar+gzip" if layer[:2] == _GZIP else "layer.v1.tar") for layer in image.layers]
    unpacked = [gzip.decompress(layer) if layer[:2] == _GZIP else layer for layer in image.layers]
    config = {
        **({"created": image.created} if image.created else {}),
        "architecture": architecture(image.machine),
        "os": "linux",
        "config": {**image.settings, **({"Labels": dict(image.labels)} if image.labels else {})},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in unpacked]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _KIND + "manifest.v1+json",
        "config": kept(json.dumps(config).encode(), "config.v1+json"),
        "layers": layers,
    }
    return kept(json.dumps(manifest).encode(), "manifest.v1+json")
