"""``tools/bootstrap`` in a tree of its own, with stand-ins for the programs that it calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from calabash.adapters.host.reach import barrier_to_others

ROOT = Path(__file__).resolve().parents[3]


class Tree:
    """A tree that has the script, with stand-ins for the programs that it calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = root / "programs"
        for folder in ("tools", "native", "programs", "src", ".venv/bin"):
            (root / folder).mkdir(parents=True)
        for name in ("bootstrap", "kube-packages.txt"):
            shutil.copy(ROOT / "tools" / name, root / "tools")
        (root / "pyproject.toml").write_text("")
        self.program("gcc", "echo /usr/lib/libssl.a")
        self.program("uv", "echo noise; echo more noise >&2")
        self.program("make", '[ -f native/built ] || { case "$*" in *-q*) exit 1;; esac; touch native/built; }')

        (root / ".venv/bin/python").symlink_to(
            self.program("python", 'echo "$*" "[$PYTHONDONTWRITEBYTECODE]" >>compilations')
        )

    def program(self, name: str, script: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def __call__(self, *options: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.programs}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [self.root / "tools" / "bootstrap", *options],
            env=environment | {"HOME": str(home or self.root / "home")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    if subprocess.run(["/usr/bin/python3", "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        pytest.skip("this machine's own python3 has no ensurepip, which set-up would install first")
    return Tree(tmp_path)


def test_each_step_is_a_line_with_its_time_and_the_last_line_says_what_to_try(tree: Tree) -> None:
    done = tree("--try")
    assert (done.returncode, done.stderr) == (0, "")
    *steps, last = done.stdout.splitlines()
    assert [re.sub(r" +\d+\.\d s$", "", step) for step in steps] == [
        "Python environment, in .venv",
        "compiled modules, in .venv and src",
        "C libraries, in src/calabash/_native",
    ]
    assert "try:" in last


def test_build_without_openssl_is_announced(tree: Tree) -> None:
    tree.program("gcc", "echo libssl.a")
    done = tree()
    assert done.returncode == 0
    assert done.stderr == (
        "warning: libssl-dev is not installed: THIS BUILD HAS NO TLS; hint: tools/bootstrap --quick\n"
    )


def test_a_tree_that_is_in_place_is_left_alone_in_silence(tree: Tree) -> None:
    tree()
    done = tree()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_modules_are_compiled_whatever_the_environment_says_and_again_when_a_source_is_newer(tree: Tree) -> None:
    tree()
    compiled = (tree.root / "compilations").read_text()
    assert "-m compileall -q src []" in compiled
    assert "calabash.pool.daemon" in compiled
    for stamp in (".calabash-synced", ".calabash-compiled"):
        os.utime(tree.root / ".venv" / stamp, (1, 1))
    os.utime(tree.root / "pyproject.toml", (0, 0))
    assert tree().stdout == ""
    (tree.root / "src/new.py").touch()
    assert "compiled modules" in tree().stdout
    assert tree().stdout == ""


def test_a_step_that_fails_shows_what_it_said_and_ends_the_set_up(tree: Tree) -> None:
    tree.program("uv", "echo no network; exit 3")
    done = tree("--try")
    assert done.returncode != 0
    assert done.stdout.rstrip().endswith("failed")
    assert done.stderr == "no network\n"


def test_kubernetes_for_the_tests_is_built_where_go_and_root_are(tree: Tree) -> None:
    tree.program("id", "echo 0")
    tree.program("apt-get", "exit 0")
    tree.program("go", "exit 0")
    tree.program("python", 'echo building "$@"')
    told = tree("--tests").stdout.splitlines()
    assert told[-4:] == [
        "building -m tests.kube.programs",
        "building -m tests.kube.charts",
        "building -m tests.kube.controller_programs",
        "building -m tests.contract.go_programs",
    ]
    assert "building" not in tree().stdout
    tree.program("id", "echo 1000")
    assert "building" not in tree("--tests").stdout


@pytest.fixture
def kube_tree(tree: Tree) -> Tree:
    """A tree on a machine on which a Kubernetes can be built, except for its packages."""
    tree.program("id", "echo 0")
    tree.program("apt-get", "exit 0")
    tree.program("unshare", "exit 0")
    tree.program("go", "echo go1.26.8")
    tree.program("python", 'echo building "$@"')
    (tree.root / "tools/kube-packages.txt").write_text("# purpose, what is looked for, package\nnode sh dash\n")
    tree()
    return tree


def test_kubernetes_of_ones_own_is_built_and_its_time_is_said_before(kube_tree: Tree) -> None:
    told = kube_tree("--kube").stdout.splitlines()
    assert told[0].startswith("first run: Kubernetes is built from source, usually in 5 to 15 minutes")
    assert told[2:] == ["building -m tests.kube.programs"]


def test_packages_of_kubernetes_are_installed_and_a_missing_one_is_named_before_anything_is_built(
    kube_tree: Tree,
) -> None:
    missing = kube_tree.root / "from-a-package"
    with (kube_tree.root / "tools/kube-packages.txt").open("a") as file:
        file.write(f"node {missing} busybox-static\nbuild no-such-program other\n")
    kube_tree.program("uv", "echo built >>uses")
    (kube_tree.root / ".venv/.calabash-synced").unlink()
    done = kube_tree("--kube")
    assert done.returncode == 2
    assert "Debian packages: busybox-static other" in done.stdout
    assert done.stderr == (
        "error: no Kubernetes can run here: Debian packages are missing: busybox-static\n"
        "hint: apt-get install busybox-static\n"
    )
    assert not (kube_tree.root / "uses").exists()
    kube_tree.program("apt-get", f"touch {missing}")
    assert kube_tree("--kube").stdout.splitlines()[-1] == "building -m tests.kube.programs"


@pytest.mark.parametrize(
    ("program", "script", "error"),
    [
        ("id", "echo 1000", "namespaces need root"),
        ("unshare", "exit 1", "namespaces cannot be made"),
        ("go", "echo go1.19.8", "Go is too old: go1.19.8"),
    ],
)
def test_what_kubernetes_needs_is_checked_before_the_first_build(
    kube_tree: Tree, program: str, script: str, error: str
) -> None:
    kube_tree.program(program, script)
    done = kube_tree("--kube")
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    assert error in done.stderr


def test_go_is_not_needed_where_kubernetes_was_built_before(kube_tree: Tree) -> None:
    kube_tree.program("go", "echo go1.19.8")
    built = kube_tree.root / ".cache/calabash/kube/key-go"
    built.mkdir(parents=True)
    (built / "kubelet").touch()
    done = kube_tree("--kube", home=kube_tree.root)
    assert done.returncode == 0
    assert "first run" not in done.stdout


def test_root_sets_up_with_a_python_that_other_users_can_execute(tree: Tree) -> None:
    """uv would otherwise take the interpreter of root's home, as the first one of the PATH."""
    for part in (tree.root, *tree.root.parents):
        if part.stat().st_uid == os.geteuid() and not part.stat().st_mode & 1:
            part.chmod(part.stat().st_mode | 0o055)
    taken = tree.root / "home" / "python3"
    taken.parent.mkdir(mode=0o700)
    taken.symlink_to("/usr/bin/python3")
    tree.program("id", "echo 0")
    tree.program("uv", f'case "$*" in *find*) echo {taken.parent}/own;; sync*) echo "[$UV_PYTHON]" >told;; esac')
    own = taken.parent / "own"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    (tree.root / ".venv/bin/python").unlink()
    tree()
    chosen = (tree.root / "told").read_text().strip("[]\n")
    assert Path(chosen).resolve(strict=True) == Path(chosen)
    assert not Path(chosen).is_relative_to(tree.root)
    assert barrier_to_others(Path(chosen), execute=True) is None


@pytest.mark.parametrize("who", ["1000", "0"])
def test_a_python_that_others_can_execute_or_that_is_a_users_own_stays_the_choice_of_uv(tree: Tree, who: str) -> None:
    tree.program("id", f"echo {who}")
    tree.program("uv", 'case "$*" in *find*) echo /usr/bin/env;; sync*) echo "[$UV_PYTHON]" >told;; esac')
    (tree.root / ".venv/bin/python").unlink()
    tree()
    assert (tree.root / "told").read_text() == "[]\n"


def test_files_of_a_tree_can_be_read_by_others_whatever_the_umask_is(tree: Tree) -> None:
    before = os.umask(0o077)
    try:
        tree()
    finally:
        os.umask(before)
    assert (tree.root / "native/built").stat().st_mode & 0o777 == 0o644
