"""Tests of modules and kernels on a remote GPU: images sent by hash, launches, and answers that are cached.

The traffic is checked by the driver's own counters, not by time.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native import remote_code_program
from tests.native.remote_world import REMOTE_DIR, RemoteNode
from tests.native.sim_cuda_programs import CudaNode

PROGRAM = Path(remote_code_program.__file__)
IMAGE = remote_code_program.KERNELS.encode() + b"\0"
SAME = ("refused", "unloaded", "library", "compiled_badly", "resolved", "devices", "doubted")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return the file in which workers keep images."""
    return tmp_path / "images"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RemoteNode]]:
    nodes: list[RemoteNode] = []

    def made(**environment: str) -> RemoteNode:
        nodes.append(RemoteNode(tmp_path / "node.state", "A100-40GB,T4,T4", **environment))
        return nodes[-1]

    yield made
    for node in nodes:
        node.close()


@pytest.fixture
def node(start: Callable[..., RemoteNode]) -> RemoteNode:
    return start()


@pytest.fixture
def keeping(start: Callable[..., RemoteNode], images: Path) -> RemoteNode:
    """A node whose workers keep images."""
    return start(CALABASH_IMAGES=str(images))


def ask(environment: dict[str, str], tmp_path: Path, *what: object) -> Any:
    """Return what the program prints; its output goes to files, because a process that hangs would keep a pipe open."""
    out, err = tmp_path / "program.out", tmp_path / "program.err"
    with out.open("w") as to, err.open("w") as told:
        command = [sys.executable, str(PROGRAM), *map(str, what)]
        done = subprocess.run(command, stdout=to, stderr=told, env=environment, timeout=60, check=False)
    assert done.returncode == 0, err.read_text()
    return json.loads(out.read_text())


def test_program_has_a_current_context_after_two_round_trips(node: RemoteNode, tmp_path: Path) -> None:
    counted = ask(node.environment(), tmp_path, "started")
    assert counted["questions"] == 2
    assert counted["image_bytes"] == 0


def test_program_has_launched_its_first_kernel_after_five_round_trips(node: RemoteNode, tmp_path: Path) -> None:
    assert ask(node.environment(), tmp_path, "first_kernel")["questions"] <= 5


def test_attributes_of_kernels_arrive_with_the_image(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "loaded")
    assert told["load"]["questions"] == 2, "whether it is there, and once more when it has been sent"
    assert told["load"]["image_bytes"] == len(IMAGE)
    assert told["after"]["commands"] == 0
    assert told["layout"] == [[0, 8], [8, 4], [12, 4]]
    assert (told["threads"], told["name"], told["missing"]) == (1024, "add_number", 500)


def test_second_start_of_a_program_sends_no_byte_of_code(keeping: RemoteNode, images: Path, tmp_path: Path) -> None:
    assert ask(keeping.environment(), tmp_path, "loaded")["load"]["image_bytes"] == len(IMAGE)
    assert hashlib.blake2b(IMAGE, digest_size=32).digest() in images.read_bytes()
    again = ask(keeping.environment(), tmp_path, "loaded")["load"]
    assert again["image_bytes"] == 0
    assert again["questions"] == 1


def test_cached_image_that_was_modified_is_discarded(keeping: RemoteNode, images: Path, tmp_path: Path) -> None:
    ask(keeping.environment(), tmp_path, "loaded")
    images.write_bytes(images.read_bytes().replace(b"add.u32", b"sub.u32"))
    assert ask(keeping.environment(), tmp_path, "loaded")["load"]["image_bytes"] == len(IMAGE)
    assert IMAGE in images.read_bytes()
    assert ask(keeping.environment(), tmp_path, "loaded")["load"]["image_bytes"] == 0


@pytest.mark.parametrize("before", [b"", b"x", b"\xff" * 4096, b"CBAAGES1" + b"\0" * 9, b"CBAAGES1" * 512])
def test_file_without_images_is_an_empty_cache(
    start: Callable[..., RemoteNode], images: Path, tmp_path: Path, before: bytes
) -> None:
    images.write_bytes(before)
    node = start(CALABASH_IMAGES=str(images))
    assert ask(node.environment(), tmp_path, "loaded")["load"]["image_bytes"] == len(IMAGE)
    assert ask(node.environment(), tmp_path, "loaded")["load"]["image_bytes"] == 0


def test_link_in_the_place_of_the_file_is_not_followed(keeping: RemoteNode, images: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"of somebody else")
    images.symlink_to(elsewhere)
    assert ask(keeping.environment(), tmp_path, "loaded")["load"]["image_bytes"] == len(IMAGE)
    assert elsewhere.read_bytes() == b"of somebody else"


def test_cached_images_never_exceed_their_limit(start: Callable[..., RemoteNode], images: Path, tmp_path: Path) -> None:
    most = 2 * len(IMAGE) + 1000
    node = start(CALABASH_IMAGES=str(images), CALABASH_IMAGES_MAX=str(most))
    texts = [tmp_path / f"{number}.ptx" for number in range(5)]
    for number, text in enumerate(texts):
        text.write_text(remote_code_program.KERNELS + f"//{number}\n")
        assert ask(node.environment(), tmp_path, "loaded", text)["load"]["image_bytes"] > 0
        assert images.stat().st_size <= most
    sent = [ask(node.environment(), tmp_path, "loaded", text)["load"]["image_bytes"] > 0 for text in reversed(texts)]
    assert sent[0] is False, "the youngest is there"
    assert sum(sent) >= 3, "no more than two have room"


def test_launches_of_both_forms_need_no_round_trip(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "launched")
    assert told["results"] == [0, 0]
    assert told["both"] == 1
    assert told["values"] == [111, 112, 113, 114]
    assert (told["spent"]["commands"], told["spent"]["questions"]) == (2, 0)


@pytest.mark.parametrize("what", SAME)
def test_every_result_equals_that_of_a_local_driver(node: RemoteNode, tmp_path: Path, what: str) -> None:
    local = ask(CudaNode.environment(node), tmp_path, what)
    assert ask(node.environment(), tmp_path, what) == local


@pytest.mark.parametrize("visible", ["", "1", "2,0", "1,9,0", "GPU-nonsense", "uuid", "-1"])
def test_visible_devices_select_the_same_devices_as_with_a_local_driver(
    node: RemoteNode, tmp_path: Path, visible: str
) -> None:
    if visible == "uuid":
        raw = ask(CudaNode.environment(node), tmp_path, "devices")["uuids"][2]
        visible = f"GPU-{raw[:8]}-{raw[8:12]}"
    local = ask(CudaNode.environment(node, CUDA_VISIBLE_DEVICES=visible), tmp_path, "devices")
    assert ask(node.environment(CUDA_VISIBLE_DEVICES=visible), tmp_path, "devices") == local


def test_visible_devices_select_among_the_devices_of_the_worker(
    start: Callable[..., RemoteNode], tmp_path: Path
) -> None:
    node = start(CUDA_VISIBLE_DEVICES="2,1")
    everything = ask(CudaNode.environment(node), tmp_path, "devices")["uuids"]
    assert ask(node.environment(CUDA_VISIBLE_DEVICES="0"), tmp_path, "devices")["uuids"] == [everything[2]]
    assert ask(node.environment(CUDA_VISIBLE_DEVICES="1,0,2"), tmp_path, "devices")["uuids"] == everything[1:]
    assert ask(node.environment(CUDA_VISIBLE_DEVICES="2"), tmp_path, "devices") == {"init": 100}


def test_eager_step_needs_no_round_trip(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "stepped")
    assert told["spent"]["questions"] == 0
    assert told["values"] == [1000]


def test_polling_a_stream_asks_once_per_submission(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "polled")
    assert all(asked <= 10 for asked in told["questions"].values()), told["questions"]
    assert told["values"] == [30]


def test_query_after_a_wait_needs_no_round_trip(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "concluded")
    assert set(told["codes"]) == {"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemcpyDtoH_v2"}
    assert all(codes == [0] for codes in told["codes"].values()), told["codes"]
    assert told["values"] == [80]


def test_occupancy_is_asked_once_per_kernel_and_arguments(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "occupied")
    assert told["asked"]["questions"] == 1
    assert told["found"] == [16]
    assert told["called"]
    assert told["best"][0] > 0


def test_unchanged_attribute_is_sent_once(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "attributes")
    assert told["again"]["commands"] == 0
    assert (told["value"], told["refused"], told["launch"]) == (65536, 1, 0)


def test_variable_of_a_module_is_found_once_and_is_memory_like_any_other(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "variable")
    assert told["asked"]["commands"] == 0
    assert (told["bytes"], told["values"], told["missing"]) == (64, [7, 9], 500)


def test_linked_image_is_not_sent_back(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "linked")
    assert (told["launch"], told["values"], told["gone"]) == (0, [42], 400)
    assert told["load"]["image_bytes"] == 0
    assert told["load"]["questions"] == 1


def test_cooperative_launch_asks_once_whether_all_its_blocks_fit(node: RemoteNode, tmp_path: Path) -> None:
    told = ask(node.environment(), tmp_path, "cooperative")
    assert (told["fits"], told["end"]) == (0, 0)
    assert told["again"]["questions"] == 0


def test_missing_server_gives_no_device_and_one_line_of_explanation(tmp_path: Path) -> None:
    own = {"LD_LIBRARY_PATH": str(REMOTE_DIR), "CALABASH_REMOTE": f"unix:{tmp_path / 'nobody.sock'}"}
    assert ask(os.environ | own, tmp_path, "devices") == {"init": 100}
    said = (tmp_path / "program.err").read_text().splitlines()
    assert len(said) == 1
    assert "nobody.sock" in said[0]


def test_forwarding_driver_without_an_address_says_so(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "CALABASH_REMOTE"}
    assert ask(environment | {"LD_LIBRARY_PATH": str(REMOTE_DIR)}, tmp_path, "devices") == {"init": 100}
    said = (tmp_path / "program.err").read_text().splitlines()
    assert "CALABASH_REMOTE" in said[0]
    assert said[1:] == ["hint: start the program with `calabash run`"]


def test_many_programs_load_the_same_image_at_the_same_time(keeping: RemoteNode, images: Path, tmp_path: Path) -> None:
    told: list[Any] = []

    def one(number: int) -> None:
        own = tmp_path / str(number)
        own.mkdir()
        told.append(ask(keeping.environment(), own, "loaded"))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each["name"] for each in told] == ["add_number"] * 4
    assert images.read_bytes().count(IMAGE) == 1
