"""Tests of the checker of circular dependencies between C files, and that the native code has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.ccircles import NATIVE, report


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize("folder", ["api", "image", "page", "shim", "sim"])
def test_no_files_of_the_native_code_depend_on_each_other_in_a_circle(folder: str) -> None:
    assert report(NATIVE, [folder]) == []


def test_two_units_that_call_each_other_are_a_circle_and_each_arrow_names_what_ties_it(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            "a/low.h": "int low(void);\n",
            "a/low.c": '#include "a/low.h"\nint high(void);\nint low(void)\n{\n    return high();\n}\n',
            "a/high.c": '#include "a/low.h"\nint high(void)\n{\n    return low();\n}\n',
        },
    )
    assert report(folder) == [
        "circle in a: a/high, a/low",
        "  a/high -> a/low: #include a/low.h, low",
        "  a/low -> a/high: high",
    ]


def test_header_that_declares_anothers_function_ties_it_to_that_one(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            "all.h": "int one(void);\n",
            "one.c": '#include "all.h"\nint one(void)\n{\n    return 1;\n}\n',
        },
    )
    assert report(folder)[0] == "circle in .: all, one"


def test_source_and_its_header_are_one_unit(tmp_path: Path) -> None:
    folder = write(
        tmp_path, {"one.h": "int one(void);\n", "one.c": '#include "one.h"\nint one(void)\n{\n    return 1;\n}\n'}
    )
    assert report(folder) == []


@pytest.mark.parametrize(
    "mention",
    [
        "/* one() */ int two(void)\n{\n    return 2;\n}\n",
        'const char *two(void)\n{\n    return "one()";\n}\n',
        "static int one(void)\n{\n    return 3;\n}\nint two(void)\n{\n    return one();\n}\n",
        "int two(struct s *s)\n{\n    return s->one + s[0].one;\n}\n",
        "int two(void)\n{\n    int one = 1;\n    return one;\n}\n",
    ],
    ids=["comment", "text", "a static of the same name", "a member", "a local variable"],
)
def test_mention_that_is_no_call_is_no_arrow(tmp_path: Path, mention: str) -> None:
    folder = write(
        tmp_path, {"one.c": '#include "two.h"\nint one(void)\n{\n    return two();\n}\n', "two.h": "", "two.c": mention}
    )
    assert report(folder) == []


def test_function_whose_address_is_taken_is_an_arrow(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            "one.c": '#include "two.h"\nint one(void)\n{\n    return 1;\n}\n',
            "two.h": "",
            "two.c": "int one(void);\nint (*const table[])(void) = {one};\n",
        },
    )
    assert report(folder)[0] == "circle in .: one, two"


def test_only_circles_that_touch_the_folders_asked_for_are_told(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            "x/a.h": '#include "x/b.h"\n',
            "x/b.h": '#include "x/a.h"\n',
            "y/c.h": "",
        },
    )
    assert report(folder, ["y"]) == []
    assert report(folder, ["x/"])[0] == "circle in x: x/a, x/b"
