"""Former names of options are accepted with a warning."""

from __future__ import annotations

import pytest

from calabash.kubernetes.node_plugin.daemon import parser, read_settings
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.model.renamed_options import with_current_names
from calabash.node.processes.unmanaged import UnmanagedPolicy

RENAMED = {"--old": "--new"}


@pytest.mark.parametrize(
    ("words", "current"),
    [
        (["--old", "a"], ["--new", "a"]),
        (["--old=a", "--older"], ["--new=a", "--older"]),
        (["run", "--", "--old"], ["run", "--", "--old"]),
        (["--new", "old"], ["--new", "old"]),
    ],
)
def test_former_names_are_replaced_before_the_end_of_options(words: list[str], current: list[str]) -> None:
    found, warnings = with_current_names(words, RENAMED)
    assert found == current
    assert warnings == ([] if words == current else ["option --old is deprecated; use --new"])


def test_former_name_given_twice_has_one_warning() -> None:
    assert len(with_current_names(["--old", "a", "--old=b"], RENAMED)[1]) == 1


def test_agent_reads_former_names_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    settings = read_settings(["--node", "a", "--strangers=drain", "--door", "claims"])
    assert settings.unmanaged_policy is UnmanagedPolicy.DRAIN
    assert settings.allocation_api is AllocationApi.CLAIMS
    assert capsys.readouterr().err.splitlines() == [
        "warning: option --strangers is deprecated; use --unmanaged",
        "warning: option --door is deprecated; use --allocation-api",
    ]
    assert read_settings(["--node", "a", "--unmanaged=drain", "--allocation-api", "claims"]) == settings
    assert capsys.readouterr().err == ""
    shown = parser().format_help()
    assert "--unmanaged" in shown
    assert "--strangers" not in shown
    assert "--door" not in shown
