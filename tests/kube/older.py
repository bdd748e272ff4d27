"""An older version of the product for tests of upgrades: the present image and chart with another version number."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from tests.kube.charts import CHART
from tools import dist
from tools.oci import Image, packed, write_archive

import calabash

VERSION = "0.1.9"
COLUMN_LACKING = "queues.calabash.dev.yaml"  # definition that has fewer columns in the older chart
_MODULE = "calabash/__init__.py"
_COMPILED = re.compile(r"calabash/__pycache__/__init__\.[^/]*\.pyc$")  # it is used without a comparison with its source


def older_image(archive: Path, target: Path) -> Path:
    """Write a copy of the product's image in which the product has the version ``VERSION``; return its path."""
    with tarfile.open(archive) as tar:

        def blob(digest: str) -> bytes:
            found = tar.extractfile("blobs/" + digest.replace(":", "/"))
            assert found is not None
            return found.read()

        index = tar.extractfile("index.json")
        assert index is not None
        (listed,) = json.load(index)["manifests"]
        manifest = json.loads(blob(listed["digest"]))
        layers = [blob(layer["digest"]) for layer in manifest["layers"]]
        settings = json.loads(blob(manifest["config"]["digest"]))["config"]
    layers[-1] = packed(_renumbered(gzip.decompress(layers[-1])))
    return write_archive(target, [Image(f"localhost/calabash:{VERSION}", tuple(layers), settings)])


def _renumbered(layer: bytes) -> bytes:
    """Return a copy of a layer in which ``calabash.__version__`` is ``VERSION``."""
    made = io.BytesIO()
    changed = 0
    with tarfile.open(fileobj=io.BytesIO(layer)) as old, tarfile.open(fileobj=made, mode="w") as new:
        for entry in old:
            if _COMPILED.search(entry.name):
                continue
            file = old.extractfile(entry) if entry.isfile() else None
            content = file.read() if file is not None else b""
            if entry.name.endswith("/" + _MODULE):
                content = content.replace(f'"{calabash.__version__}"'.encode(), f'"{VERSION}"'.encode())
                entry.size = len(content)
                changed += 1
            new.addfile(entry, io.BytesIO(content))
    assert changed == 1, changed
    return made.getvalue()


def chart_archives(directory: Path) -> Iterator[Path]:
    """Write the archives of the older chart and of the present one, as in a release; yield their paths."""
    tree = directory / CHART.name
    shutil.copytree(CHART, tree)
    description = tree / "Chart.yaml"
    description.write_text(description.read_text().replace(calabash.__version__, VERSION))
    definition = tree / "crds" / COLUMN_LACKING
    content = yaml.safe_load(definition.read_text())
    for version in content["spec"]["versions"]:
        version["additionalPrinterColumns"].pop()
    definition.write_text(yaml.safe_dump(content))
    yield dist.write_chart(directory, tree)
    yield dist.write_chart(directory)


def definitions(directory: Path = CHART / "crds") -> dict[str, object]:
    """Return the names and versions of the definitions in a chart."""
    read = [yaml.safe_load(path.read_text()) for path in sorted(directory.glob("*.yaml"))]
    return {one["metadata"]["name"]: one["spec"]["versions"] for one in read}
