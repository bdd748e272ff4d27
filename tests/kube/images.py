"""Container images without a registry: OCI archives made from files, for ``RealNode.import_images``.

write_archive(path, base_images(scratch) + [Image("localhost/agent:1", (layer_of(tree),), {"Entrypoint": ["/agent"]})])
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAUSE = "localhost/pause:3"
BUSYBOX = "localhost/busybox:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_KIND = "application/vnd.oci.image."


@dataclass(frozen=True, slots=True)
class Image:
    """An image: what pods call it, its layers (uncompressed tar archives, lowest first), its settings (Env, Cmd, ...)."""

    reference: str
    layers: tuple[bytes, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


def layer_of(tree: Path, under: str = "") -> bytes:
    """A layer with everything of a directory, owned by root, below ``under`` in the image."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(tree, arcname=under or ".", filter=_owned_by_root)
    return data.getvalue()


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def write_archive(path: Path, images: Iterable[Image]) -> Path:
    """Writes an OCI archive with these images; the path."""
    blobs: dict[str, bytes] = {}
    listed = [_manifest(image, blobs) for image in images]
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


def _manifest(image: Image, blobs: dict[str, bytes]) -> dict[str, Any]:
    def kept(data: bytes, kind: str) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": _KIND + kind, "digest": digest, "size": len(data)}

    layers = [kept(layer, "layer.v1.tar") for layer in image.layers]
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": dict(image.settings),
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _KIND + "manifest.v1+json",
        "config": kept(json.dumps(config).encode(), "config.v1+json"),
        "layers": layers,
    }
    named = {"io.containerd.image.name": image.reference, "org.opencontainers.image.ref.name": image.reference}
    return {**kept(json.dumps(manifest).encode(), "manifest.v1+json"), "annotations": named}


def base_images(scratch: Path) -> list[Image]:
    """What every node has: the first process of pods, and a shell with the usual commands."""
    first = scratch / "pause"
    first.mkdir(parents=True)
    source = Path(__file__).with_name("pause.c")
    subprocess.run(["gcc", "-Os", "-static", "-s", "-Wall", "-Werror", "-o", first / "pause", source], check=True)
    shell = scratch / "busybox"
    for directory in ("bin", "dev", "etc", "proc", "root", "sys", "tmp"):
        (shell / directory).mkdir(parents=True)
    (shell / "tmp").chmod(0o1777)
    (shell / "bin" / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (shell / "bin" / "busybox").chmod(0o755)
    (shell / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n")
    names = subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name != "busybox":
            (shell / "bin" / name).symlink_to("busybox")
    return [
        Image(PAUSE, (layer_of(first),), {"Entrypoint": ["/pause"]}),
        Image(BUSYBOX, (layer_of(shell),), {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]}),
    ]
