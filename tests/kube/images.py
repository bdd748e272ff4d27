"""Container images without a registry: OCI archives made from files, for ``RealNode.import_images``.

For example, this archive contains the base images and an image with the files of a directory:

    agent = Image("localhost/agent:1", (layer_of(tree),), {"Entrypoint": ["/agent"]})
    write_archive(path, base_images(scratch) + [agent])
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.oci import Image, layer_of, write_archive

__all__ = ["BUSYBOX", "PAUSE", "Image", "base_images", "layer_of", "write_archive"]

PAUSE = "localhost/pause:3"
BUSYBOX = "localhost/busybox:1"


def base_images(scratch: Path) -> list[Image]:
    """Return the images that every node has: the pause image of sandboxes, and a shell with the usual commands."""
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
