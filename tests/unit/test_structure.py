"""Structure of the sources: length of modules, and folders of unit tests, which mirror those of the product."""

from __future__ import annotations

import statistics
from pathlib import Path

import calabash

PRODUCT, UNIT_TESTS = Path(calabash.__file__).parent, Path(__file__).parent
SOURCES = sorted(PRODUCT.rglob("*.py"))
MODULE_LINES_MAX, MODULE_LINES_MEDIAN = 400, 120
NOT_OF_THE_PRODUCT = {Path("bench"), Path("tools")}  # folders of the repository whose modules have unit tests too


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_no_module_is_longer_than_400_lines_and_the_median_is_at_most_120() -> None:
    assert [f"{path}: {_lines(path)}" for path in SOURCES if _lines(path) > MODULE_LINES_MAX] == []
    assert statistics.median(_lines(path) for path in SOURCES if path.name != "__init__.py") <= MODULE_LINES_MEDIAN


def test_each_folder_of_unit_tests_has_the_path_of_a_folder_of_the_product() -> None:
    folders = {path.parent.relative_to(UNIT_TESTS) for path in UNIT_TESTS.rglob("*.py")} - NOT_OF_THE_PRODUCT
    assert [str(folder) for folder in sorted(folders) if not (PRODUCT / folder / "__init__.py").is_file()] == []
