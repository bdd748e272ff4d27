"""Tests of the test cluster's real node: it runs containers, survives crashes of its components, and leaves nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kube.cluster import Cluster
from tests.kube.images import BUSYBOX, Image, layer_of, write_archive
from tests.kube.namespaces import processes_in
from tests.kube.needs import need
from tests.kube.node import RealNode
from tests.kube.test_cluster import ROOT, nothing_left

PODS = "/api/v1/namespaces/default/pods"


def run(cluster: Cluster, name: str, script: str, *, image: str = BUSYBOX, node: str = "node1") -> None:
    """Create a pod that runs a shell script."""
    main = {"name": "main", "image": image, "command": ["sh", "-c", script]}
    spec = {"containers": [main], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "nodeName": node}
    cluster.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def wait_for_phase(cluster: Cluster, name: str, *phases: str) -> str:
    def phase() -> str:
        found = str(cluster.api.get(f"{PODS}/{name}")["status"].get("phase", ""))
        return found if found in phases else ""

    return cluster.wait_for(phase, f"pod {name} {' or '.join(phases)}")


def test_pod_runs_to_its_end_and_its_log_can_be_read(real_node: RealNode) -> None:
    cluster = real_node.cluster
    run(cluster, "greeting", "echo good day from $(hostname)")
    assert wait_for_phase(cluster, "greeting", "Succeeded", "Failed") == "Succeeded"
    assert cluster.kubectl("logs", "greeting") == "good day from greeting\n"


def test_image_made_from_a_directory_runs(real_node: RealNode, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "opt").mkdir(parents=True)
    (tree / "opt" / "said").write_text("from a layer of its own\n")
    shell = tmp_path / "shell"
    (shell / "bin").mkdir(parents=True)
    (shell / "bin" / "sh").write_bytes(Path("/bin/busybox").read_bytes())
    (shell / "bin" / "sh").chmod(0o755)
    image = Image("localhost/made:1", (layer_of(shell), layer_of(tree)), {"Env": ["PATH=/bin"]})
    real_node.import_images(write_archive(tmp_path / "made.tar", [image]))
    run(real_node.cluster, "made", "while read line; do echo $line; done < /opt/said", image="localhost/made:1")
    assert wait_for_phase(real_node.cluster, "made", "Succeeded", "Failed") == "Succeeded"
    assert real_node.cluster.kubectl("logs", "made") == "from a layer of its own\n"


def test_device_of_a_cdi_file_written_outside_is_injected(real_node: RealNode) -> None:
    """Both the test process and programs inside can reach the directories of CDI specs and of the kubelet's sockets."""
    edits = {"env": ["INJECTED=yes"]}
    device = {"cdiVersion": "0.5.0", "kind": "example.com/thing", "devices": [{"name": "one", "containerEdits": edits}]}
    directory = real_node.outside("/var/run/cdi")
    (directory / "thing.new").write_text(json.dumps(device))
    (directory / "thing.new").rename(directory / "thing.json")
    inside = real_node.cluster.exec_inside("cat", "/var/run/cdi/thing.json", beside=real_node.name)
    assert json.loads(inside) == device
    sockets = real_node.cluster.exec_inside("ls", "/var/lib/kubelet/device-plugins", beside=real_node.name)
    assert "kubelet.sock" in sockets.split()
    assert real_node.outside("/var/lib/kubelet/device-plugins/kubelet.sock").is_socket()
    assert real_node.outside("/var/lib/kubelet/pod-resources/kubelet.sock").is_socket()


def test_running_pods_survive_kubelet_and_containerd(real_node: RealNode) -> None:
    cluster = real_node.cluster
    run(cluster, "lasting", "echo began; while [ ! -e /tmp/enough ]; do sleep 0.1; done; echo ended")
    wait_for_phase(cluster, "lasting", "Running")
    cluster.kill(real_node.kubelet)
    real_node.restart_containerd()
    cluster.start(real_node.kubelet)
    real_node.wait_until_ready()

    def told() -> bool:
        return cluster.kubectl(
            "exec", "lasting", "--", "touch", "/tmp/enough", check=False
        ) == "" and "Succeeded" in str(cluster.api.get(f"{PODS}/lasting")["status"]["phase"])

    cluster.wait_for(told, "the pod's end", every_s=0.2)
    assert cluster.kubectl("logs", "lasting") == "began\nended\n"
    assert cluster.api.get(f"{PODS}/lasting")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_programs_in_the_cluster_find_the_api_server_where_pods_look_for_it(real_node: RealNode) -> None:
    """A pod with a service account uses the address of the API server's Service and verifies its certificate."""
    cluster = real_node.cluster
    run(
        cluster,
        "reaching",
        "nc -w 5 10.96.0.1 443 </dev/null && cat /var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
    )
    assert wait_for_phase(cluster, "reaching", "Succeeded", "Failed") == "Succeeded"
    assert cluster.kubectl("logs", "reaching") == cluster.secrets.authority.read_text()
    asks = (
        "import ssl, sys, urllib.request as r; "
        "print(r.urlopen('https://10.96.0.1/version', context=ssl.create_default_context(cafile=sys.argv[1])).status)"
    )
    assert cluster.exec_inside(sys.executable, "-c", asks, str(cluster.secrets.authority)) == "200\n"


@pytest.mark.slow
def test_two_nodes_have_directories_of_their_own_and_pods_that_reach_each_other(real_node: RealNode) -> None:
    cluster = real_node.cluster
    other = RealNode(cluster, "node2")
    (other.outside("/run/cdi") / "only-here").touch()
    assert not (real_node.outside("/run/cdi") / "only-here").exists()
    run(cluster, "serving", "echo from the other node | nc -l -p 8000", node="node1")
    wait_for_phase(cluster, "serving", "Running")
    address = cluster.api.get(f"{PODS}/serving")["status"]["podIP"]
    run(cluster, "asking", f"nc -w 5 {address} 8000", node="node2")
    assert wait_for_phase(cluster, "asking", "Succeeded", "Failed") == "Succeeded"
    assert cluster.kubectl("logs", "asking") == "from the other node\n"


@pytest.mark.slow
def test_rebooted_node_starts_its_pods_again(real_node: RealNode) -> None:
    cluster = real_node.cluster
    main = {"name": "main", "image": BUSYBOX, "command": ["sleep", "100000"]}
    spec = {"containers": [main], "nodeName": "node1", "terminationGracePeriodSeconds": 0}
    cluster.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "again"}, "spec": spec})
    wait_for_phase(cluster, "again", "Running")
    (real_node.outside("/run/cdi") / "volatile").touch()
    (real_node.outside("/var/lib/kubelet") / "kept").touch()
    cluster.start_program("beside", ["sleep", "100000"], beside=real_node.name)
    real_node.reboot()
    assert cluster.namespaces.wait("beside", timeout_s=0) == -signal.SIGKILL

    def restarted() -> bool:
        state = cluster.api.get(f"{PODS}/again")["status"]["containerStatuses"][0]
        return bool(state["restartCount"] == 1 and state["ready"])

    cluster.wait_for(restarted, "the pod's container started again")
    assert not (real_node.outside("/run/cdi") / "volatile").exists()
    assert (real_node.outside("/var/lib/kubelet") / "kept").exists()


KILLED = """
import os, signal
from tests.kube.cluster import Cluster
from tests.kube.node import RealNode
from tests.kube.test_node import run, wait_for_phase
cluster = Cluster(lifecycle=True)
RealNode(cluster)
run(cluster, "endless", "sleep 100000")
wait_for_phase(cluster, "endless", "Running")
pid = cluster.namespaces.pid
print(cluster.root, pid, os.readlink(f"/proc/{pid}/ns/net"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_node_with_running_pods_whose_test_process_was_killed() -> None:
    need(node=True)
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    root, pid, network = killed.stdout.split()
    nothing_left(Path(root), int(pid))
    assert not processes_in(network, "net")
