"""Tests of the multi-process service of a simulated node: the control daemon's commands, shares, limits and faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.mps_world import CONTROL, Service
from tests.native.sim_cuda_programs import CudaNode
from tests.native.simnode import until

CUDA_SUCCESS = 0
OUT_OF_MEMORY = 2
NO_DEVICE = 100
DEVICE_UNAVAILABLE = 46
ILLEGAL_ADDRESS = 700
MPS_RPC_FAILURE = 806
MPS_SERVER_NOT_READY = 807
MPS_MAX_CLIENTS = 808
MPS_CLIENT_TERMINATED = 810
A100_SMS = 108


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CudaNode]:
    made = CudaNode(tmp_path / "node.state", "A100-40GB,T4")
    yield made
    made.close()


@pytest.fixture
def service(node: CudaNode, tmp_path: Path) -> Iterator[Service]:
    made = Service(node, tmp_path / "mps", CUDA_VISIBLE_DEVICES=uuid(node))
    yield made
    made.close()


def uuid(node: CudaNode, index: int = 0) -> str:
    return str(node.device(index)["uuid"])


def nvml(node: CudaNode, expression: str) -> list[int]:
    """Return what NVML reports for card 0, in a process of its own."""
    source = f"from pynvml import *; import json; nvmlInit(); h = nvmlDeviceGetHandleByIndex(0); print({expression})"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=node.environment(), check=True, timeout=60
    )
    answer = json.loads(done.stdout)
    assert isinstance(answer, list)
    return answer


def test_server_starts_with_the_first_client_and_the_lists_name_both(service: Service) -> None:
    assert service.control("get_server_list") == ""
    client = service.client()
    assert client.result == CUDA_SUCCESS
    assert service.control("get_server_status", service.server) == "ACTIVE"
    assert service.control("get_client_list", service.server) == str(client.process.pid)
    line = service.control("ps").splitlines()[1].split()
    assert line[0] == str(client.process.pid)
    assert line[2] == str(service.server)
    compute = nvml(service.node, "json.dumps([p.pid for p in nvmlDeviceGetComputeRunningProcesses(h)])")
    assert sorted(compute) == sorted([service.server, client.process.pid])
    clients = nvml(service.node, "json.dumps([p.pid for p in nvmlDeviceGetMPSComputeRunningProcesses(h)])")
    assert clients == [client.process.pid]


def test_client_sees_its_share_of_multiprocessors_and_its_environment_can_only_lessen_it(service: Service) -> None:
    first = service.client()
    assert first.sms == A100_SMS
    assert service.control("set_active_thread_percentage", service.server, 50) == "50.0"
    assert service.control("get_active_thread_percentage", service.server) == "50.0"
    assert service.client().sms == A100_SMS // 2
    assert service.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="20").sms == A100_SMS * 20 // 100
    assert service.node.run("sim_cuda_green", "shown", **service.service_environment()) == f"{A100_SMS // 2}\n", (
        "green contexts divide the share and no more"
    )
    assert service.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90").sms == A100_SMS // 2
    assert service.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="much").sms == A100_SMS // 2


def test_defaults_are_for_servers_that_start_later(service: Service) -> None:
    service.control("set_default_active_thread_percentage", "12.5")
    service.control("set_default_device_pinned_mem_limit", 0, "4G")
    client = service.client()
    assert client.sms == A100_SMS * 125 // 1000
    assert service.control("get_device_pinned_mem_limit", service.server, 0) == "4G"
    service.control("set_default_active_thread_percentage", 80)
    assert service.control("get_active_thread_percentage", service.server) == "12.5"


def test_clients_run_at_once_by_their_shares(service: Service) -> None:
    shares = (50, 30, 20)
    clients = [service.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(share)) for share in shares]
    for share, client in zip(shares, clients, strict=True):
        client.send_line(f"card {2 * share} 10000000")  # two seconds, if all run at once and none waits for another
    for share, client in zip(shares, clients, strict=True):
        milliseconds = float(client.read_answer()[0])
        assert 2 * share * 10 * 100 / milliseconds == pytest.approx(share, abs=2)


def test_shares_that_come_to_more_than_the_card_are_lessened_alike(service: Service) -> None:
    clients = [service.client() for _ in range(2)]
    for client in clients:
        client.send_line("card 100 2000000")
    took = [float(client.read_answer()[0]) for client in clients]
    for milliseconds in took:
        assert 360 < milliseconds < 440  # 200 ms of the card each, both at once


def test_client_alone_runs_as_fast_as_its_share(service: Service) -> None:
    client = service.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25")
    milliseconds, result = client.ask("card 50 1000000")
    assert int(result) == CUDA_SUCCESS
    assert float(milliseconds) == pytest.approx(200, rel=0.01)


def test_server_holds_clients_to_its_limit_and_the_environment_can_only_lessen_it(service: Service) -> None:
    service.client()
    service.control("set_device_pinned_mem_limit", service.server, uuid(service.node)[:20], "2048M")
    held = service.client(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=8G")
    assert held.call("alloc 1024") == CUDA_SUCCESS
    assert held.call("alloc 1024") == OUT_OF_MEMORY
    less = service.client(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G")
    assert less.call("alloc 1024") == OUT_OF_MEMORY
    assert less.call("alloc 256") == CUDA_SUCCESS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets the compute mode, as on a real card")
def test_exclusive_mode_admits_the_service_and_nobody_beside_it(service: Service) -> None:
    nvml(service.node, "json.dumps([nvmlDeviceSetComputeMode(h, 3)])")
    first, second = service.client(), service.client()
    assert (first.result, second.result) == (CUDA_SUCCESS, CUDA_SUCCESS)
    outside = service.client(CUDA_MPS_PIPE_DIRECTORY="/nonexistent")
    assert outside.result == DEVICE_UNAVAILABLE


def test_fatal_fault_of_one_client_is_answered_to_all_and_the_service_comes_back(service: Service) -> None:
    culprit, victim = service.client(), service.client()
    server = service.server
    assert culprit.call("fault") == ILLEGAL_ADDRESS
    assert victim.call() == ILLEGAL_ADDRESS
    assert victim.call("alloc 1") == ILLEGAL_ADDRESS
    assert service.control("get_server_status", server) == "FAULT"
    assert service.client().result == MPS_SERVER_NOT_READY
    log = (service.log / "server.log").read_text
    until(lambda: f", {culprit.process.pid}}} encountered a fatal fault on device GPU-" in log(), "the log to say who")
    assert f", {victim.process.pid}}} is FAULT" in log()
    culprit.end()
    assert service.control("get_server_status", server) == "FAULT"
    victim.end()
    until(lambda: service.control("get_server_status", server) == "ACTIVE", "the server to recover")
    assert service.client().result == CUDA_SUCCESS


def test_clients_of_a_server_that_died_fail_and_the_next_gets_a_new_one(service: Service) -> None:
    client = service.client()
    before = service.server
    os.kill(before, signal.SIGKILL)
    until(lambda: client.call() == MPS_RPC_FAILURE, "the client to learn of it")
    assert service.client().result == CUDA_SUCCESS
    assert service.server != before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets the compute mode, as on a real card")
def test_without_a_daemon_a_program_runs_without_the_service(service: Service) -> None:
    service.daemon.kill()
    service.daemon.wait()
    assert service.client().sms == A100_SMS
    nvml(service.node, "json.dumps([nvmlDeviceSetComputeMode(h, 3)])")
    assert service.client().result == DEVICE_UNAVAILABLE  # the first holds the card


def test_no_more_clients_than_the_card_serves(service: Service) -> None:
    clients = [service.client() for _ in range(49)]
    assert [c.result for c in clients[:48]] == [CUDA_SUCCESS] * 48
    assert clients[48].result == MPS_MAX_CLIENTS


def test_client_can_be_terminated_alone(service: Service) -> None:
    hit, spared = service.client(), service.client()
    assert service.control("terminate_client", service.server, hit.process.pid) == "0"
    assert hit.call() == MPS_CLIENT_TERMINATED
    assert spared.call() == CUDA_SUCCESS


def test_server_that_is_shut_down_waits_for_its_clients_unless_forced(service: Service) -> None:
    client = service.client()
    server = service.server
    waiting = subprocess.Popen(
        [CONTROL], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=service.environment()
    )
    assert waiting.stdin is not None
    waiting.stdin.write(f"shutdown_server {server}\n")
    waiting.stdin.close()
    assert client.call() == CUDA_SUCCESS
    assert waiting.poll() is None
    client.end()
    assert waiting.wait(timeout=60) == 0
    again = service.client()
    service.control("shutdown_server", service.server, "-f")
    assert again.call() == MPS_RPC_FAILURE


def test_quit_ends_servers_and_daemon(service: Service) -> None:
    client = service.client()
    service.control("quit", "-t", 0)
    assert service.daemon.wait(timeout=60) == 0
    assert not (service.pipe / "control").exists()
    compute = nvml(service.node, "json.dumps([p.pid for p in nvmlDeviceGetComputeRunningProcesses(h)])")
    assert compute == [client.process.pid]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("set_default_active_thread_percentage 0", "Invalid percentage"),
        ("set_default_active_thread_percentage 101", "Invalid percentage"),
        ("set_active_thread_percentage 1 50", "Failed to find server 1"),
        ("set_default_device_pinned_mem_limit 0 lots", "Invalid limit"),
        ("set_default_device_pinned_mem_limit 0 1T", "Invalid limit"),
        ("get_server_status", "Invalid arguments"),
        ("start_server -gid 5", "Usage"),
        ("dance", "Unknown command: dance"),
        ("x" * 900, "Unknown command"),
    ],
)
def test_commands_that_make_no_sense_are_refused_in_words(service: Service, command: str, answer: str) -> None:
    assert service.control(command).startswith(answer)


def test_second_daemon_in_the_same_directory_is_refused(service: Service) -> None:
    second = subprocess.run(
        [CONTROL, "-d"], capture_output=True, text=True, env=service.environment(), check=False, timeout=60
    )
    assert second.returncode == 1
    assert "already running" in second.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG needs root, as on a real card")
def test_service_on_a_mig_device_shares_that_part_of_the_card(node: CudaNode, tmp_path: Path) -> None:
    # 3g.20gb: 42 of the card's 108 multiprocessors
    made = """[
        nvmlDeviceSetMigMode(h, 1) and None,
        nvmlGpuInstanceCreateComputeInstance(nvmlDeviceCreateGpuInstance(h, 9), 2) and None,
        nvmlDeviceGetUUID(nvmlDeviceGetMigDeviceHandleByIndex(h, 0)),
    ]"""
    part = str(nvml(node, f"json.dumps({made})")[2])
    service = Service(node, tmp_path / "mps", CUDA_VISIBLE_DEVICES=part)
    try:
        halves = [service.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50") for _ in range(2)]
        assert [half.sms for half in halves] == [21, 21]
        for half in halves:
            half.send_line("spin 50 1000000")
        assert all(float(half.read_answer()[0]) < 400 for half in halves)  # of the part, both at once
        assert service.client(CUDA_VISIBLE_DEVICES=uuid(node, 1)).result == NO_DEVICE
    finally:
        service.close()
