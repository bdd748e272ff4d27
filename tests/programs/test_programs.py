"""Libraries that nobody here wrote, unmodified, on the simulated card. Each program compares with numpy itself."""

from __future__ import annotations

import pytest
from tests.programs.places import Place, packages


def test_kernels_of_numba_give_what_numpy_gives(where: Place) -> None:
    found = where.results("numba_kernels")
    wanted = {"add", "histogram", "mandelbrot", "product", "reduction", "stencil", "shuffle", "functions", "grid"}
    assert set(found) == wanted


def test_cuda_cpp_compiled_by_nvrtc_gives_what_numpy_gives(where: Place) -> None:
    assert set(where.results("nvrtc_kernels")) == {"sgemm", "reduce", "softmax", "layer_norm"}


def test_cuda_core_compiles_links_captures_and_launches(where: Place) -> None:
    found = where.results("core_features")
    assert found["properties"] == ["NVIDIA A100-SXM4-80GB", [8, 0], 108]
    assert {"scale<float>", "scale<double>", "linked", "graph"} <= set(found)


@pytest.mark.parametrize("compiler", ["CUDA", "CUDA:PTX"])
def test_tinygrad_trains_a_network_with_nvrtc_and_with_its_own_ptx(where: Place, compiler: str) -> None:
    losses = where.results("tinygrad_train", DEV=compiler, CACHELEVEL="0")["losses"]
    assert losses == sorted(losses, reverse=True)


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
