"""Write OCI archives from files, without a registry or a container engine. The same input gives the same bytes.

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
    """An image for one machine.

    Args:
        reference: the name by which pods refer to it.
        layers: tar archives, compressed by gzip or not, lowest first.
        settings: Env, Cmd and so on, as in the image's configuration.
        created: time in RFC 3339, or empty to leave it out.
        machine: as ``uname -m`` prints it.
    """

    reference: str
    layers: tuple[bytes, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    machine: str = field(default_factory=platform.machine)  # as ``uname -m`` says it


def architecture(machine: str = "") -> str:
    """Return a machine's name in images; ``machine`` is as ``uname -m`` prints it, by default this machine's."""
    machine = machine or platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def layer_of(tree: Path, under: str = "") -> bytes:
    """Return a layer with all files of a directory, owned by root, below ``under`` in the image; times are not kept."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(tree, arcname=under or ".", filter=_plain)  # tarfile adds a directory's entries in order of their names
    return data.getvalue()


def packed(layer: bytes) -> bytes:
    """Return a layer compressed by gzip; the same input gives the same bytes."""
    return gzip.compress(layer, compresslevel=6, mtime=0)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def write_archive(path: Path, images: Iterable[Image]) -> Path:
    """Write an OCI archive with these images and return its path. Images of one reference become one multi-platform image."""
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
    """Return the descriptor of a reference in the archive's index: of its manifest, or of an index of manifests by machine."""
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
