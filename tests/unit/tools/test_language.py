"""Rules of `tools.language`: for each an example that is refused and one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import language
from tools.language_rules import check_module, read_glossary

GLOSSARY = read_glossary()


def _messages(text: str, path: str = "src/calabash/node/reaper.py", *, is_product: bool = True) -> list[str]:
    return [finding.message for finding in check_module(path, text, GLOSSARY, is_product=is_product)]


@pytest.mark.parametrize(
    "line",
    [
        "What the device reports.",
        "Whether the device is healthy.",
        "Whose allocation it is.",
        "How to reset a device.",
        "It is reset.",
        "Its devices by node.",
        "Those of the node.",
        "This host's devices.",
        "Nothing is written.",
        "Until the pod runs.",
        "From the journal.",
    ],
)
@pytest.mark.parametrize("place", ['"""{}"""', 'class A:\n    """{}"""', 'def f() -> None:\n    """\n    {}\n    """'])
def test_docstring_that_begins_with_a_clause_or_pronoun_is_refused(place: str, line: str) -> None:
    found = _messages(place.format(line))
    assert len(found) == 1
    assert f"begins with {line.split(maxsplit=1)[0].split(chr(39), maxsplit=1)[0]!r}" in found[0]


@pytest.mark.parametrize(
    "line",
    [
        "Return True if the device is healthy.",
        "Devices that are out of service.",
        "In-memory index of pods.",
        "Whole devices of a node.",
        "``what`` is a column.",
    ],
)
def test_docstring_that_begins_with_a_verb_or_noun_is_accepted(line: str) -> None:
    assert _messages(f'def f() -> None:\n    """{line}"""') == []


def test_docstring_of_a_function_that_begins_with_a_verb_in_the_third_person_is_refused() -> None:
    assert len(_messages('def f() -> None:\n    """Writes the file."""')) == 1
    assert _messages('def f() -> None:\n    """Write the file."""') == []
    assert _messages('class A:\n    """Writes files."""') == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def reset_strangers() -> None: ...", "reset_strangers"),
        ("class PodBook: ...", "PodBook"),
        ("class Pod:\n    def __init__(self, wish: str) -> None:\n        self.request = wish", "wish"),
        ("class Pod:\n    def set(self) -> None:\n        self.kept_place = 1", "kept_place"),
        ("LOOK_EVERY_S = 1", "LOOK_EVERY_S"),
        ("import json as book", "book"),
    ],
)
def test_identifier_with_a_word_that_the_glossary_replaces_is_refused(text: str, name: str) -> None:
    found = _messages(text)
    assert len(found) == 1
    assert f"name {name!r} uses" in found[0]


def test_identifiers_of_the_glossary_and_allowed_ones_are_accepted() -> None:
    assert _messages("class PodStore: ...\ndef poll_devices(request: str) -> None: ...\nbookkeeping = 1") == []
    assert _messages("def look_up_device() -> None: ...\nSEE_BILLS = 1") == []


def test_name_that_is_only_read_is_not_checked() -> None:
    assert _messages("import workbook\nsheet = workbook.book(tend=1)") == []


def test_plain_english_is_accepted_in_names_of_tests_and_metaphors_are_not() -> None:
    assert _messages("def test_devices_look_well() -> None: ...", "tests/unit/test_reaper.py") == []
    assert len(_messages("def test_strangers_are_killed() -> None: ...", "tests/unit/test_reaper.py")) == 1


def test_word_of_the_glossary_is_refused_in_docstrings_and_comments_with_its_line() -> None:
    text = '"""Pods.\n\nThe planner tells whoever asks."""\n\nx = 1  # a stranger\ny = "whoever"\n'
    found = sorted(check_module("a.py", text, GLOSSARY))
    assert [(f.line, f.message) for f in found] == [(3, "docstring uses 'whoever'"), (5, "comment uses 'stranger'")]


def test_code_in_docstrings_is_not_checked() -> None:
    assert _messages('"""Value of ``strangers`` and of `door`, option --strangers, label calabash.dev/door."""') == []


def test_word_of_the_glossary_is_refused_in_messages_of_the_product() -> None:
    text = 'raise ValueError(f"{name} is used by somebody; hint: ask")\nkey = "door"\n'
    assert _messages(text) == ["message uses 'somebody'"]
    assert _messages(text, "tests/unit/test_reaper.py", is_product=False) == []


def test_generic_name_of_a_public_function_is_refused() -> None:
    assert _messages("class A:\n    def of(self) -> None: ...") == ["function name 'of' cannot be searched for"]
    assert _messages("def forget() -> None: ...") == ["function name 'forget' cannot be searched for"]
    assert _messages("def forget_pod() -> None: ...\ndef _of() -> None: ...") == []


def test_command_of_the_command_line_keeps_its_name_and_its_help() -> None:
    text = '@cli.command()\ndef why() -> None:\n    """Explain."""\n    raise CalabashError(Reason.NOT_FOUND, "")'
    assert _messages(text) == []


def test_generic_name_of_a_module_is_refused() -> None:
    assert len(_messages("", "src/calabash/node/parts.py")) == 1
    assert len(_messages("", "src/calabash/node/pod_book.py")) == 1
    assert _messages("", "src/calabash/node/spare_parts.py") == []


RAISING = 'def f() -> None:\n    """Return it.{}"""\n    raise CalabashError(Reason.NOT_FOUND, "no device")'


def test_public_function_of_the_product_names_the_error_that_it_raises() -> None:
    assert _messages(RAISING.format("")) == ["docstring of f does not say that it raises CalabashError"]
    assert _messages(RAISING.format(" NOT_FOUND if there is none.")) == []
    assert _messages(RAISING.format("\n\n    Raises:\n        CalabashError: no device.\n    ")) == []


def test_private_functions_and_tests_may_raise_without_saying_so() -> None:
    assert _messages(RAISING.format("").replace("f()", "_f()")) == []
    assert _messages(RAISING.format(""), "tests/unit/test_reaper.py", is_product=False) == []
    inner = 'def f() -> None:\n    """Return it."""\n    def g() -> None:\n        raise CalabashError(Reason.NOT_FOUND, "")'
    assert _messages(inner) == []


ARGS = """\
\"""Do it.

    Args:
        first: one.
        second, third (s): two:
            other: no.
    \"""
"""


def test_args_name_only_parameters() -> None:
    function = f"def f(first: int, second: int{{}}) -> None:\n    {ARGS}"
    assert _messages(function.format(", third: int")) == []
    assert _messages(function.format("")) == ["Args of f names 'third', which is no parameter"]


def test_args_of_a_class_name_its_fields_or_the_parameters_of_its_constructor() -> None:
    fields = f"class A{{}}:\n    {ARGS}\n    first: int\n    second: int"
    assert _messages(fields.format("")) == ["Args of A names 'third', which is no parameter"]
    assert _messages(fields.format("") + "\n    third: int") == []
    assert _messages(fields.format("(Base)")) == []
    made = f"class A:\n    {ARGS}\n    def __init__(self, *, first: int, second: int, third: int) -> None: ..."
    assert _messages(made) == []


def test_finding_prints_place_message_and_hint() -> None:
    [finding] = check_module("a.py", "def of() -> None: ...", GLOSSARY)
    assert str(finding) == "a.py:1: function name 'of' cannot be searched for; hint: add the object to the verb"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with one finding in src/a and two in src/b, where src/b is not checked yet."""
    for folder in language.FOLDERS:
        (tmp_path / folder).mkdir()
    for name, text in {"src/a/x.py": '"""How it is."""\n', "src/b/y.py": '"""What it is."""\nwish = 1\n'}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text('[tool.calabash.language]\nnot-yet = ["src/b"]\n')
    monkeypatch.setattr(language, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("tree")
def test_folders_of_not_yet_are_checked_only_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, places in (
        ([], ["src/a/x.py:1"]),
        (["--all"], ["src/a/x.py:1", "src/b/y.py:1", "src/b/y.py:2"]),
        (["src/b"], ["src/b/y.py:1", "src/b/y.py:2"]),
    ):
        assert language.main(arguments) == 1
        assert [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()] == places


@pytest.mark.usefixtures("tree")
def test_count_prints_a_number_for_each_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert language.main(["--count"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["1", "src/a"],
        ["2", "src/b"],
        ["3", "in", "all"],
    ]


def test_tree_without_findings_passes(tree: Path) -> None:
    (tree / "src/a/x.py").write_text('"""Devices."""\n')
    assert language.main([]) == 0


def test_path_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such file or folder: absent"):
        language.main(["absent"])
