"""Pages of the settings: the keys of ``pool.toml`` from its decoder, and the environment variables that the product reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from calabash.pool.settings import Settings
from tools.environment_reads import read_variables

_POOL_HEAD = """\
# Settings of the pool

The file `pool.toml` in the home of the pool has its settings. The file and every key are optional; the pool reads the file
when it starts, and does not start if a key is unknown or a value is not valid. The home is
[`CALABASH_HOME`](environment.md), by default `/var/lib/calabash` for root and `~/.local/share/calabash` for other users. For
example:

```toml
[user]
waiting = 200

[over_use]
budget = "tell"

[tenants.vision]
budget = "return"
```
"""
_ENVIRONMENT_HEAD = """\
# Environment variables

All environment variables that commands, daemons and libraries of Calabash read. Those of the last table are set by Calabash
itself for its processes and for programs in slices; do not set them.
"""
_PARAGRAPHS = re.compile(r"\n\s*\n")
_ARGUMENT = re.compile(r"^ {8}(\w+): (.*(?:\n {12,}.*)*)", re.MULTILINE)

# Variables that a user may set, by the part that reads them.
USER_VARIABLES: dict[str, dict[str, str]] = {
    "Commands and daemons": {
        "CALABASH_HOME": "Home directory of the pool: its socket, database, settings and logs.",
        "CALABASH_SERVER": "URL of the API of a pool or cluster on another machine, as `calabash --server`.",
        "CALABASH_CONSOLE": "Address HOST:PORT of the console, or `off`, as `calabash up --console`.",
        "CALABASH_SIM": "State file of a simulated node, whose cards a program sees instead of those of the machine.",
        "CALABASH_NET_PREFIX": "Prefix of the names of a network lab, as `calabash net up --prefix`.",
        "CALABASH_DEBIAN_MIRROR": "Mirror of Debian from which the programs of a network lab are downloaded.",
        "CALABASH_PROGRAM_PATH": "Further directories in which programs of the system are searched; only root may be able"
        " to write them.",
        "KUBECONFIG": "File with the address and credentials of the Kubernetes API server.",
        "KUBERNETES_SERVICE_HOST": "Address of the API server, which Kubernetes sets in pods.",
        "KUBERNETES_SERVICE_PORT": "Port of the API server, which Kubernetes sets in pods.",
        "NO_COLOR": "Set and not empty: `top` uses no colours.",
        "TERM": "Type of the terminal; `top` and `demo` print plain text if it is `dumb`, `unknown` or not set.",
        "NOTIFY_SOCKET": "Socket of the service manager that waits for the readiness of a pool; systemd sets it.",
        "NODE_NAME": "Name of the node of the agent on Kubernetes, which the chart sets.",
        "XDG_CACHE_HOME": "Directory of caches, by default `~/.cache`: the programs of a network lab.",
        "XDG_CONFIG_HOME": "Directory of configuration files, by default `~/.config`: accounts on servers.",
        "LD_LIBRARY_PATH": "Directories of libraries, which come after those of Calabash in a program on a slice.",
        "HOME": "Home directory of the user.",
        "PATH": "Directories in which programs are searched. Daemons of root use those of the system only.",
    },
    "Programs on slices": {
        "CALABASH_VERBOSE": "If it is set, the shim prints on stderr which operations it refuses because memory of the slice is"
        " in host memory.",
        "CALABASH_DEBUG": "If it is set, the library for remote devices prints on stderr which functions it refuses.",
        "CALABASH_REMOTE_SILENCE_S": "Seconds without an answer after which a connection to a remote device is replaced.",
        "CUDA_VISIBLE_DEVICES": "Devices that a program sees, as with NVIDIA's driver, among those of its slice.",
        "CUDA_DEVICE_ORDER": "Order of the devices that a program sees, as with NVIDIA's driver.",
        "CUDA_DEVICE_MAX_CONNECTIONS": "Passed to the worker of a brokered or remote program.",
        "CUDA_DISABLE_PTX_JIT": "Passed to the worker of a brokered or remote program.",
        "CUDA_FORCE_PTX_JIT": "Passed to the worker of a brokered or remote program.",
        "CUDA_LAUNCH_BLOCKING": "Passed to the worker of a brokered or remote program.",
        "CUDA_MODULE_LOADING": "Lazy or eager loading of kernels, as with NVIDIA's driver.",
    },
    "Simulated cards": {
        "CALABASH_SIM_DRIVER": "Version of the simulated driver, for programs that test several versions.",
    },
}
# Variables that Calabash or NVIDIA's MPS set for processes that they start.
INTERNAL_VARIABLES: dict[str, str] = {
    "CALABASH_IMAGES": "File descriptor or path of the store of kernel images of a worker.",
    "CALABASH_IMAGES_MAX": "Largest size of that store.",
    "CALABASH_MPS_DOOR": "Socket at which a program in mode `mps` asks for admission.",
    "CALABASH_REMOTE": "Address of the server and file with the key of a lease of remote devices.",
    "CALABASH_REMOTE_GRACE_S": "Seconds for which a worker waits for a program that lost its connection.",
    "CALABASH_SIM_MPS_SERVER": "Marks the server of the simulated MPS.",
    "CALABASH_SLOT": "Directory with the shared pages of the allocation of a program.",
    "CALABASH_USUAL_PRIORITY": "Priority to which programs return that a daemon with a raised priority starts.",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "Share of an MPS client.",
    "CUDA_MPS_LOG_DIRECTORY": "Directory of the logs of an MPS daemon.",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "Memory limits of an MPS client.",
    "CUDA_MPS_PIPE_DIRECTORY": "Directory of the sockets of an MPS daemon.",
    "PYTHONSAFEPATH": "Set for processes of a simulation, so that they import modules of the product only.",
    "_CALABASH_COMPLETE": "Set by the completion of shells.",
}


def environment_page() -> str:
    """Return the page of environment variables. Raises ValueError if it lists other variables than the product reads."""
    listed = {name for table in USER_VARIABLES.values() for name in table} | INTERNAL_VARIABLES.keys()
    if read := read_variables() ^ listed:
        raise ValueError(f"tools/reference_settings.py and the sources differ in: {', '.join(sorted(read))}")
    lines = [_ENVIRONMENT_HEAD]
    for heading, table in (*USER_VARIABLES.items(), ("Set by Calabash", INTERNAL_VARIABLES)):
        lines += [f"## {heading}\n", "| variable | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in table.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def pool_settings_page() -> str:
    """Return the page of ``pool.toml``: one table of keys for each section."""
    return "\n".join([_POOL_HEAD, *_section_lines()]).rstrip() + "\n"


def setting_rows() -> Iterator[tuple[str, type[msgspec.Struct], list[tuple[str, str, str, str]]]]:
    """Yield the name, the struct, and the rows (key, type, default, meaning) of each section."""
    yield from _sections(Settings, "")


def _sections(struct: type[msgspec.Struct], prefix: str) -> Iterator[Any]:
    meanings = argument_meanings(struct)
    rows = []
    below: list[tuple[str, type[msgspec.Struct]]] = []
    for field in inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        name, kind = f"{prefix}{field.encode_name}", field.type
        if isinstance(kind, inspect.StructType):
            below.append((f"[{name}]", kind.cls))
        elif isinstance(kind, inspect.DictType) and isinstance(kind.value_type, inspect.StructType):
            below.append((f"[{name}.NAME]", kind.value_type.cls))
        elif isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.StructType):
            below.append((f"[[{name}]]", kind.item_type.cls))
        else:
            rows.append((field.encode_name, _type(kind), _default(field), meanings.get(field.encode_name, "")))
    if prefix:
        yield f"[{prefix.rstrip('.')}]", struct, rows
    for heading, inner in below:
        if heading.startswith("[[") or ".NAME" in heading:
            (_, _, inner_rows), *_ = _sections(inner, "x.")
            yield heading, inner, inner_rows
        else:
            yield from _sections(inner, f"{heading.strip('[]')}.")


def _section_lines() -> Iterator[str]:
    for heading, struct, rows in setting_rows():
        summary = _PARAGRAPHS.split((struct.__doc__ or "").partition("    Args:")[0].strip())
        yield f"## `{heading}`\n"
        yield from (_plain(paragraph) + "\n" for paragraph in summary)
        yield from ("| key | type | default | meaning |", "|---|---|---|---|")
        yield from (f"| `{key}` | {kind} | {default} | {meaning} |" for key, kind, default, meaning in rows)
        yield ""


def argument_meanings(struct: type) -> dict[str, str]:
    """Return the meaning of each field that the section ``Args`` of the docstring describes."""
    section = (struct.__doc__ or "").partition("    Args:\n")[2]
    return {name: _plain(text)[:1].upper() + _plain(text)[1:] for name, text in _ARGUMENT.findall(section)}


def _plain(text: str) -> str:
    """Return text of a docstring as one line of Markdown."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _type(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(f"`{json.dumps(value)}`" for value in kind.values)
    if isinstance(kind, inspect.ListType):
        return f"list of {_type(kind.item_type)}"
    if isinstance(kind, inspect.UnionType):
        return " or ".join(_type(part) for part in kind.types if not isinstance(part, inspect.NoneType))
    if isinstance(kind, inspect.StrType):
        return "string"
    if isinstance(kind, inspect.BoolType):
        return "boolean"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        name = "integer" if isinstance(kind, inspect.IntType) else "number"
        low = f"{kind.ge:,}" if kind.ge is not None else f"above {kind.gt:,}" if kind.gt is not None else ""
        return f"{name}, {low} to {kind.le:,}" if low and kind.le is not None else name
    raise TypeError(f"no name for the type {kind}")


def _default(field: inspect.Field) -> str:
    value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    if value is msgspec.NODEFAULT:
        return "required"
    return "not set" if value is None else f"`{json.dumps(value)}`"
