"""Check the language of docstrings, comments and names against tools/glossary.toml.

    python -m tools.language [--all | --count] [PATH ...]

Without arguments the files are checked that are not below a folder of `[tool.calabash.language] not-yet` in
pyproject.toml; `--all` checks these as well, `--count` prints the number of findings of each folder, and paths check
only what they name. Exits with 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tools.language_rules import Finding, Glossary, check_module, read_glossary

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "bench", "tools", "examples")
PRODUCT = "src/calabash"
# Written by a compiler, or for the environment of other programs.
EXCLUDED = ("*_pb2.py", "tests/programs/scripts/*")


def sources(paths: Sequence[str]) -> list[str]:
    """Return the Python files at and below the paths, as paths relative to the repository, in order."""
    found: set[Path] = set()
    for name in paths:
        path = ROOT / name
        if not path.exists():
            raise SystemExit(f"error: no such file or folder: {name}\nhint: give a path relative to {ROOT}")
        found.update(path.rglob("*.py") if path.is_dir() else [path])
    relative = [path.resolve().relative_to(ROOT) for path in found]
    return sorted(str(path) for path in relative if not any(path.match(pattern) for pattern in EXCLUDED))


def is_below(name: str, folders: Iterable[str]) -> bool:
    """Return True if a file is one of the folders or lies in one."""
    return any(name == folder or name.startswith(f"{folder}/") for folder in folders)


def not_yet_checked() -> list[str]:
    """Return the folders of pyproject.toml that are not held to the rules yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders: list[str] = project["tool"]["calabash"].get("language", {}).get("not-yet", [])
    return folders


def check(names: Iterable[str], glossary: Glossary) -> Iterator[Finding]:
    """Yield the findings of the files, file by file in the order of lines."""
    for name in names:
        text = (ROOT / name).read_text()
        yield from sorted(check_module(name, text, glossary, is_product=name.startswith(f"{PRODUCT}/")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; return the exit code."""
    parser = argparse.ArgumentParser(prog="language", description="check the language of docstrings and names")
    parser.add_argument("--all", action="store_true", help="check the folders too that pyproject.toml excludes so far")
    parser.add_argument("--count", action="store_true", help="print the number of findings of each folder")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="check only these files and folders")
    given = parser.parse_args(arguments)
    names = sources(given.paths or FOLDERS)
    if not (given.all or given.count or given.paths):
        excluded = not_yet_checked()
        names = [name for name in names if not is_below(name, excluded)]
    findings = list(check(names, read_glossary()))
    if given.count:
        counts = Counter(str(Path(finding.path).parent) for finding in findings)
        for folder, count in sorted(counts.items()):
            print(f"{count:6} {folder}")
        print(f"{len(findings):6} in all")
        return 0
    for finding in findings:
        print(finding)
    if findings:
        print(
            f"error: {len(findings)} findings in {len(names)} files\nhint: docs/reference/glossary.md", file=sys.stderr
        )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
