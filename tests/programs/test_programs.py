"""Unmodified libraries of other projects on the simulated card, at every place that a program may run.

Each program compares with numpy itself, and prints its results as bytes, which must be the same at every place.
"""

from __future__ import annotations

import pytest
from tests.programs.places import PLACES, ROOT, Place, packages


def test_kernels_of_numba_give_what_numpy_gives(where: Place, local: Place) -> None:
    found = where.results("numba_kernels")
    wanted = {"add", "histogram", "mandelbrot", "product", "reduction", "stencil", "shuffle", "functions", "grid"}
    assert set(found) == wanted
    assert found == local.results("numba_kernels")


def test_cuda_cpp_compiled_by_nvrtc_gives_what_numpy_gives(where: Place, local: Place) -> None:
    found = where.results("nvrtc_kernels")
    assert set(found) == {"sgemm", "reduce", "softmax", "layer_norm"}
    assert found == local.results("nvrtc_kernels")


def test_cuda_core_compiles_links_captures_and_launches(where: Place, local: Place) -> None:
    found = where.results("core_features")
    assert found["properties"] == ["NVIDIA A100-SXM4-80GB", [8, 0], 108]
    assert {"scale<float>", "scale<double>", "linked", "graph"} <= set(found)
    assert found == local.results("core_features")


@pytest.mark.parametrize("compiler", ["CUDA", "CUDA:PTX"])
def test_tinygrad_trains_a_network_with_nvrtc_and_with_its_own_ptx(where: Place, local: Place, compiler: str) -> None:
    own = {"DEV": compiler, "CACHELEVEL": "0"}
    losses = where.results("tinygrad_train", **own)["losses"]
    assert losses == sorted(losses, reverse=True)
    assert losses == local.results("tinygrad_train", **own)["losses"]


TAICHI = {
    "minimal": "42.0",
    "algorithm/laplace": "4.0",
    "features/sparse/taichi_dynamic": "arch=cuda",
    "features/sparse/tutorial": "Active block: [2, 3]",
    "autodiff/minimization": "Loss = 0.0",
}


@pytest.mark.parametrize("example", TAICHI)
def test_examples_of_taichi_run(where: Place, example: str) -> None:
    said = where.run(packages() / f"taichi/examples/{example}.py", TI_ARCH="cuda")
    assert "Starting on arch=cuda" in said
    assert TAICHI[example] in said


def test_the_page_of_real_programs_names_every_place_and_every_example() -> None:
    page = (ROOT / "docs" / "reference" / "real-programs.md").read_text()
    assert {place for place in PLACES if f"| `{place}` |" in page} == set(PLACES)
    assert {example for example in TAICHI if f"`{example.rpartition('/')[2]}`" in page} == set(TAICHI)
