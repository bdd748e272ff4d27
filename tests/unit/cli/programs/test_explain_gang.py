"""Tests of ``explain-gang``: output, refusals and hostile files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from calabash.cli.kubectl.group import cli
from calabash.model.errors import CalabashError, Reason

MANIFESTS = Path(__file__).parents[2] / "kubernetes" / "gangs" / "manifests"


def run(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["explain-gang", *words], input=text)


def refusal(*words: str, text: str | None = None) -> CalabashError:
    error = run(*words, text=text).exception
    assert isinstance(error, CalabashError)
    return error


def test_gang_is_described_with_roles_amounts_topology_and_steps() -> None:
    path = MANIFESTS / "job-set.yaml"
    done = run("-f", str(path))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"JobSet train (jobset.x-k8s.io/v1alpha2), {path}: document 1",
        "  a gang of 9 pods; 9 start together, so the planner waits for 9",
        "  topology: role slice within one rack (required)",
        "    ROLE         PODS  MIN  MAX  SUBGROUPS  DEVICES  CPU  REQUEST        STARTS",
        "    coordinator     1    1    -  -                0  0.5  -              first",
        "    slice           8    8    -  2 of 4           2    4  2 x exclusive  first",
    ]


def test_gang_that_starts_in_steps_waits_for_the_first_step_only() -> None:
    lines = run("-f", str(MANIFESTS / "mpi-job.yaml")).stdout.splitlines()
    assert lines[1:3] == [
        "  a gang of 3 pods; 3 start together, so the planner waits for 2",
        "  the controller creates the pods in 2 steps, each of which starts together: 2, then 1",
    ]


def test_json_has_every_object_and_standard_input_is_read() -> None:
    text = "\n---\n".join((MANIFESTS / name).read_text() for name in ("kueue-pods.yaml", "leader-worker-set.yaml"))
    text += "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
    done = run("-f", "-", "-o", "json", text=text)
    assert done.exit_code == 0
    items = json.loads(done.stdout)["items"]
    assert [(one["kind"], one["valid"], one["reason"]) for one in items] == [
        ("Pod", True, ""),
        ("LeaderWorkerSet", True, ""),
        ("ConfigMap", True, "the kind is not in the table of gang owners"),
    ]
    assert [(gang["gangs"], gang["size"], gang["waits_for"]) for one in items for gang in one["gangs"]] == [
        (1, 2, 2),
        (3, 5, 5),
    ]


def test_items_of_a_list_are_described_one_by_one() -> None:
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: p, labels: {scheduling.x-k8s.io/pod-group: band}}}"
    done = run("-f", "-", text=f"apiVersion: v1\nkind: List\nitems: [{pod}, {pod}]\n")
    assert done.stdout.count("no gang: it belongs to the PodGroup band of coscheduling") == 2
    assert "standard input: document 1, item 2" in done.stdout


def test_invalid_object_of_a_known_kind_fails_the_command_after_all_are_described() -> None:
    text = "{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: a}, spec: {}}\n---\n"
    text += "{apiVersion: v1, kind: Service, metadata: {name: b}}\n"
    done = run("-f", "-", text=text)
    assert "not valid: the RayCluster has no roles" in done.stdout
    assert "Service b (v1)" in done.stdout
    error = done.exception
    assert isinstance(error, CalabashError)
    assert (error.reason, error.message) == (Reason.BAD_FILE, "standard input: 1 of 2 objects are not valid")


def test_request_that_admission_would_refuse_is_shown_beside_the_role() -> None:
    limits = "{limits: {calabash.dev/gpus: '1', calabash.dev/memory: 5}}"
    pod = f"{{spec: {{containers: [{{name: main, resources: {limits}}}]}}}}"
    head = "apiVersion: kubeflow.org/v1, kind: JAXJob, metadata: {name: a}"
    text = f"{{{head}, spec: {{jaxReplicaSpecs: {{Worker: {{template: {pod}}}}}}}}}"
    done = run("-f", "-", text=text)
    assert "container main: calabash.dev/memory 5 is 5 bytes" in done.stdout


def test_kind_of_a_file_of_owners_is_understood(tmp_path: Path) -> None:
    owners = tmp_path / "owners.yaml"
    owners.write_text(
        "- {system: Flock, group: flock.example.com, kind: Flock, plural: flocks, versions: [v1],"
        " roles: [{name: bird, replicas: [spec.birds]}]}\n"
    )
    flock = "{apiVersion: flock.example.com/v1, kind: Flock, metadata: {name: f}, spec: {birds: 7}}"
    assert "a gang of 7 pods" in run("-f", "-", "--owners", str(owners), text=flock).stdout
    assert "not in the table" in run("-f", "-", text=flock).stdout
    owners.write_text("- {system: Flock, group: flock.example.com, kind: Flock, plural: flocks, versions: [v1]}\n")
    error = refusal("-f", "-", "--owners", str(owners), text=flock)
    assert error.message == "gangs.owners[0]: Object missing required field `roles`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1\nb: *x\n", "standard input, line 1: anchors are not supported"),
        ("a: !!python/object/apply:os.system [id]\n", "standard input, line 1: tags are not supported"),
        ("a: 1\na: 2\n", "standard input, line 2: duplicate key 'a'"),
        ("[" * 60, "standard input, line 1: nested deeper than 48 levels"),
        ("a: " + "x" * (1 << 20), "standard input is larger than 1048576 bytes"),
        ("---\n{apiVersion: v1, kind: A}\n" * 1001, "standard input: document 1001: more than 1000 objects"),
        ("", "standard input has no objects"),
        ("a: \x00", "standard input: special characters are not allowed"),
    ],
)
def test_hostile_file_is_refused(text: str, message: str) -> None:
    error = refusal("-f", "-", text=text)
    assert error.message == message
    assert error.hint


def test_file_that_is_absent_or_not_text_is_refused(tmp_path: Path) -> None:
    assert refusal("-f", str(tmp_path / "none")).reason is Reason.NOT_FOUND
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert refusal("-f", str(binary)).reason is Reason.BAD_FILE


def test_control_characters_of_a_file_do_not_reach_the_terminal() -> None:
    text = '{apiVersion: v1, kind: "\\e[2J", metadata: {name: "a\\e[2J\\nb"}}'
    assert "\x1b" not in run("-f", "-", text=text).stdout
