"""Extras: groups of packages of others that some commands need and that a plain installation leaves out."""

from __future__ import annotations

from importlib.util import find_spec
from types import TracebackType

from calabash.model.errors import CalabashError, Reason

_CRYPTOGRAPHY = "cryptography"
# Packages of each extra, as they are imported; `all` has every one of them.
EXTRAS = {
    "console": ("jinja2", "jwt", _CRYPTOGRAPHY, "fpdf"),
    "networks": ("pyroute2", _CRYPTOGRAPHY),
    "placement": ("scipy",),
    "reports": ("fpdf", "matplotlib", "rich", "scipy"),
    "kubernetes": ("grpc", "google.protobuf", _CRYPTOGRAPHY, "jinja2", "jwt", "fpdf"),
    "remote": (_CRYPTOGRAPHY,),
    "postgresql": ("psycopg",),
}
# Logged once by a daemon that places requests without the extra `placement`.
WITHOUT_PLACEMENT = (
    "the extra placement is not installed: the default policy keeps its initial tables and does not learn from the sizes of"
    " requests; install calabash[placement]"
)
# The extra that is named for a package which several have.
_FIRST_EXTRA = {
    "jinja2": "console",
    "jwt": "console",
    "fpdf": "reports",
    "matplotlib": "reports",
    "rich": "reports",
    "scipy": "placement",
    "pyroute2": "networks",
    "grpc": "kubernetes",
    "google": "kubernetes",
    "psycopg": "postgresql",
}
_EXTRA_OF_IMPORTER = {  # packages of the product that import cryptography
    "calabash.gateway": "console",
    "calabash.kubernetes": "kubernetes",
    "calabash.controllers": "networks",
    "calabash.transport.certificates": "networks",
}


def is_installed(extra: str) -> bool:
    """Return True if all packages of an extra are installed."""
    return all(_is_found(package.partition(".")[0]) for package in EXTRAS[extra])


def _is_found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a finder that hides it
        return False


def missing(extra: str) -> CalabashError:
    """Return the error for a command whose extra is not installed."""
    return CalabashError(
        f"this command needs the packages of the extra {extra!r}, which are not installed",
        reason=Reason.UNSUPPORTED,
        hint=f"pip install 'calabash[{extra}]'",
    )


def require(extra: str) -> None:
    """Raise CalabashError(UNSUPPORTED) if an extra is not installed."""
    if not is_installed(extra):
        raise missing(extra)


def missing_import(error: ImportError) -> CalabashError | None:
    """Return the error for an import that failed because an extra is not installed; None for any other import."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    if package == _CRYPTOGRAPHY:
        return missing(_extra_of_importer(error.__traceback__))
    return missing(_FIRST_EXTRA[package]) if package in _FIRST_EXTRA else None


def _extra_of_importer(trace: TracebackType | None) -> str:
    """Return the extra of the module that imports cryptography, the last one of a traceback that needs an extra."""
    found = "remote"
    while trace is not None:
        importer = str(trace.tb_frame.f_globals.get("__name__", ""))
        for prefix, extra in _EXTRA_OF_IMPORTER.items():
            if importer == prefix or importer.startswith(f"{prefix}."):
                found = extra
        trace = trace.tb_next
    return found
