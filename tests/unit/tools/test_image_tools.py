"""Image tools: the same input gives the same bytes, and packages that are left out are not reached."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tools import debian, image, oci, sbom
from tools.debian import DebianPackage

ROOT = Path(__file__).resolve().parents[3]


def tree(directory: Path, *, time: int) -> Path:
    """Make a directory with two files of a given modification time."""
    (directory / "b").mkdir(parents=True)
    for name in ("b/two", "a"):
        (directory / name).write_text(name)
        os.utime(directory / name, (time, time))
    (directory / "link").symlink_to("a")
    return directory


def package(name: str, depends: str = "", **fields: str) -> DebianPackage:
    said = {"Package": name, "Depends": depends, **fields}
    return DebianPackage(name=name, version="1:2.0", architecture="amd64", file=Path("/dev/null"), fields=said)


def test_a_layer_depends_on_content_and_not_on_time(tmp_path: Path) -> None:
    first, second = (oci.layer_of(tree(tmp_path / str(time), time=time)) for time in (1_000_000, 2_000_000))
    assert first == second
    assert oci.packed(first) == oci.packed(second)


def test_an_archive_names_everything_by_what_it_holds(tmp_path: Path) -> None:
    layer = oci.layer_of(tree(tmp_path / "tree", time=1))
    made = oci.Image("localhost/x:1", (layer, oci.packed(layer)), {"User": "1:1"}, labels={"a": "b"})
    path = oci.write_archive(tmp_path / "x.tar", [made])
    with tarfile.open(path) as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(name)
            assert file is not None
            return file.read()

        def blob(entry: dict[str, Any]) -> bytes:
            content = read("blobs/" + entry["digest"].replace(":", "/"))
            assert entry["digest"] == "sha256:" + hashlib.sha256(content).hexdigest()
            assert entry["size"] == len(content)
            return content

        (listed,) = json.loads(read("index.json"))["manifests"]
        manifest = json.loads(blob(listed))
        config = json.loads(blob(manifest["config"]))
        plain, compressed = manifest["layers"]
        assert (plain["mediaType"][-4:], compressed["mediaType"][-9:]) == (".tar", ".tar+gzip")
        assert blob(plain) == gzip.decompress(blob(compressed)) == layer
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()] * 2
    assert config["config"] == {"User": "1:1", "Labels": {"a": "b"}}
    assert listed["annotations"]["org.opencontainers.image.ref.name"] == "localhost/x:1"


def test_images_of_one_name_for_two_machines_are_one_index(tmp_path: Path) -> None:
    def made(machine: str) -> oci.Image:
        layer = oci.layer_of(tree(tmp_path / machine, time=1), under=machine)
        return oci.Image("localhost/x:1", (layer,), machine=machine)

    path = oci.write_archive(tmp_path / "x.tar", [made("x86_64"), made("aarch64"), oci.Image("localhost/y:1", ())])
    with tarfile.open(path) as archive:

        def blob(entry: dict[str, Any]) -> Any:
            file = archive.extractfile("blobs/" + entry["digest"].replace(":", "/"))
            assert file is not None
            return json.loads(file.read())

        file = archive.extractfile("index.json")
        assert file is not None
        both, single = json.loads(file.read())["manifests"]
        assert both["mediaType"] == "application/vnd.oci.image.index.v1+json"
        assert both["annotations"]["io.containerd.image.name"] == "localhost/x:1"
        assert single["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
        listed = {entry["platform"]["architecture"]: blob(blob(entry)["config"]) for entry in blob(both)["manifests"]}
    assert {name: config["architecture"] for name, config in listed.items()} == {"amd64": "amd64", "arm64": "arm64"}
    assert listed["amd64"]["rootfs"] != listed["arm64"]["rootfs"]


def test_packages_are_reached_by_what_they_need_and_not_by_way_of_installers() -> None:
    packages = [
        package("python3", "python3.11 (>= 3.11.1-1~), libssl3 (>= 3.0.0) | libssl-dev, mime-support | media-types"),
        package("python3.11", "libc6:any (>= 2.36)"),
        package("libssl3", "debconf (>= 0.5) | debconf-2.0"),
        package("debconf", "perl-base"),
        package("perl-base"),
        package("media-types", Provides="mime-types"),
        package("libc6", **{"Pre-Depends": "libcrypt1"}),
        package("libcrypt1"),
        package("unneeded"),
    ]
    found = {one.name for one in debian.reached(["python3"], packages)}
    assert found == {"python3", "python3.11", "libssl3", "media-types", "libc6", "libcrypt1"}


def test_a_package_that_provides_a_name_is_reached_by_it() -> None:
    packages = [package("a", "awk"), package("gawk", Provides="awk (= 5)")]
    assert {one.name for one in debian.reached(["a"], packages)} == {"a", "gawk"}


def test_the_bill_says_of_everything_where_it_is_from(tmp_path: Path) -> None:
    metadata = tmp_path / "some_thing-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Metadata-Version: 2.4\nName: Some_Thing\nVersion: 1.0\nLicense-Expression: MIT\n\nWords: no field\n"
    )
    debs = sbom.debian_packages([package("zlib1g", Source="zlib (1.2)")], "12")
    text = sbom.document("calabash", "0.1.0", [*debs, *sbom.python_packages(tmp_path)])
    assert text == sbom.document("calabash", "0.1.0", [*sbom.python_packages(tmp_path), *debs])
    read = json.loads(text)
    assert (read["bomFormat"], read["specVersion"]) == ("CycloneDX", "1.6")
    assert [component["purl"] for component in read["components"]] == [
        "pkg:deb/debian/zlib1g@1%3A2.0?arch=amd64&distro=debian-12&upstream=zlib",
        "pkg:pypi/some-thing@1.0",
    ]
    assert read["components"][1]["licenses"] == [{"expression": "MIT"}]
    assert read["dependencies"][0]["dependsOn"] == [component["bom-ref"] for component in read["components"]]


def test_without_packages_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*words: Any) -> None:
        raise debian.PackagesError("apt-get ended with 100: E: Unable to locate package python3")

    monkeypatch.setattr(debian, "fetch", refuse)
    monkeypatch.setattr("sys.argv", ["image", "--out", str(ROOT / "build")])
    assert image.main() == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["error", "hint"]


def test_the_containerfile_is_of_the_same_packages_user_and_version() -> None:
    said = (ROOT / "Containerfile").read_text()
    assert " ".join([*image.PACKAGES, "python3-venv"]) in said
    assert f"USER {image.USER}:{image.USER}" in said
    assert image.REFERENCE in said
