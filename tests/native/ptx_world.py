"""Kernels for tests: a process that runs them, and the text around a few instructions."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.native.sim_cuda_programs import CudaNode

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
RUNNER = Path(__file__).with_name("ptx_runner.py")


def on_real_card() -> bool:
    """Return True if ``BENCH_CARD=real`` asks for the kernels to run on the machine's own card."""
    return os.environ.get("BENCH_CARD") == "real"


class Runner:
    """A process with one context; ``run`` starts a new one if the last had a fatal error."""

    def __init__(self, directory: Path) -> None:
        if on_real_card():
            self._environment = dict(os.environ)
        else:
            self._environment = CudaNode(directory / "node.state", "A100-40GB").environment()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = directory / "stderr"

    def run(
        self,
        text: str | list[str],
        kernel: str | None = None,
        *arrays: np.ndarray[Any, Any],
        grid: int = 1,
        block: int = 32,
        shared: int = 0,
    ) -> dict[str, Any]:
        if self._process is None:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, RUNNER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=self._environment,
                )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        encoded = [t.encode() for t in text] if isinstance(text, list) else text.encode()
        request = {"text": encoded, "kernel": kernel, "arrays": list(arrays)}
        try:
            pickle.dump(request | {"grid": grid, "block": block, "shared": shared}, self._process.stdin)
            self._process.stdin.flush()
            answer: dict[str, Any] = pickle.load(self._process.stdout)
        except BaseException:  # as the test's time limit, for a kernel that does not end
            self._process.kill()
            self.close()
            raise
        if answer.get("result"):
            self.close()
        return answer

    def said(self) -> str:
        """Return what the driver wrote to stderr."""
        return self._errors.read_text()

    def compute(self, text: str, out: np.ndarray[Any, Any], *inputs: np.ndarray[Any, Any], **shape: int) -> Any:
        """Run kernel ``k`` with an output array and the inputs as parameters, and return the output."""
        answer = self.run(text, "k", out, *inputs, **shape)
        assert answer["load"] == 0, answer["errors"]
        assert (answer["launch"], answer["result"]) == (0, 0), self.said()
        return answer["arrays"][0]

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process.stdout.close()
            self._process = None


def kernel(body: str, parameters: int, declarations: str = "") -> str:
    """Return the text of kernel ``k`` with pointers p0...

    in %p0... and its thread's number in %i; ``body`` ends before the return.
    """
    named = ", ".join(f".param .u64 p{n}" for n in range(parameters))
    loads = "".join(f"ld.param.u64 %p{n}, [p{n}];\n" for n in range(parameters))
    return (
        f"{HEAD}{declarations}\n.visible .entry k({named})\n{{\n"
        ".reg .b64 %p<8>, %a<16>, %d<32>; .reg .b32 %i, %t<4>, %r<32>; .reg .b16 %h<16>; .reg .f32 %f<32>;\n"
        ".reg .f64 %g<32>; .reg .pred %q<8>;\n"
        f"{loads}mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ntid.x; mov.u32 %t2, %tid.x; mad.lo.u32 %i, %t0, %t1, %t2;\n"
        f"{body}\nret;\n}}\n"
    )


def elementwise(instruction: str, types: str, registers: str) -> str:
    """Return a kernel ``p0[i] = instruction(p1[i], ...)``.

    Args:
        instruction: PTX instruction.
        types: types of the result and the sources, such as ``u32 f64``.
        registers: registers of the result and the sources, such as ``%r0 %f1``.
    """
    sizes = {"16": 2, "32": 4, "64": 8}
    body = ""
    kinds, names = types.split(), registers.split()
    for n, (kind, name) in enumerate(zip(kinds, names, strict=True)):
        size = sizes[kind[1:]]
        body += f"mul.wide.u32 %a{n}, %i, {size}; add.u64 %a{n}, %a{n}, %p{n};\n"
        if n:
            body += f"ld.global.{kind} {name}, [%a{n}];\n"
    body += f"{instruction} {', '.join(names)};\nst.global.{kinds[0]} [%a0], {names[0]};"
    return kernel(body, len(kinds))
