"""CDI specs: files by which a container runtime learns what a device name means, written so that no runtime sees half.

What lives here: the edits as types (``edits``) and the files (``files``). What never lives here: which container gets what.

A runtime reads the directory when it is told that something in it changed. containerd's watcher heeds rename, remove and
write, not create: hence a temporary file in the same directory and a rename, always. A name that was in force once is
never given another meaning, for a runtime may have missed the change: callers use a fresh one each time.
"""

from calabash.adapters.cdi.edits import ContainerEdits, DeviceNode, MountEdit
from calabash.adapters.cdi.files import SpecFile, list_specs, remove_spec, sweep_leftovers, write_spec

__all__ = [
    "ContainerEdits",
    "DeviceNode",
    "MountEdit",
    "SpecFile",
    "list_specs",
    "remove_spec",
    "sweep_leftovers",
    "write_spec",
]
