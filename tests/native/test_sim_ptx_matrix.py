"""Tests of matrix products, vectors of atomics, 16-bit numbers, and reducing barriers on the simulated card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.native.ptx_world import Runner, elementwise, kernel

Array = np.ndarray[Any, Any]
LANES = 32


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("ptx"))
    yield runner
    runner.close()


def bfloat(x: Array) -> Array:
    """Round to nearest bfloat16; return the 16 bits."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat(x: Array) -> Array:
    return (x.astype(np.uint32) << 16).view(np.float32)


def spread(matrix: Array, each: int, *, second: bool) -> Array:
    """Return the registers of the lanes for the first factor (or, by columns, the second): [lane, register, element]."""
    depth = matrix.shape[0 if second else 1]
    registers = depth // (4 * each) * (1 if second else 2)
    made = np.zeros((LANES, registers, each), matrix.dtype)
    for lane in range(LANES):
        for r in range(registers):
            for j in range(each):
                if second:
                    made[lane, r, j] = matrix[lane % 4 * each + j + 4 * each * r, lane // 4]
                else:
                    made[lane, r, j] = matrix[lane // 4 + 8 * (r % 2), lane % 4 * each + j + 4 * each * (r // 2)]
    return made


MULTIPLIED = {
    "m16n8k16.row.col.f32.f16.f16.f32": (16, 2, np.float16),
    "m16n8k8.row.col.f32.f16.f16.f32": (8, 2, np.float16),
    "m16n8k16.row.col.f32.bf16.bf16.f32": (16, 2, np.uint16),
    "m16n8k8.row.col.f32.tf32.tf32.f32": (8, 1, np.float32),
    "m16n8k32.row.col.s32.s8.s8.s32": (32, 4, np.int8),
    "m16n8k16.row.col.s32.u8.u8.s32": (16, 4, np.uint8),
}


@pytest.mark.parametrize("shape", MULTIPLIED)
def test_warp_multiplies_matrices(card: Runner, shape: str) -> None:
    depth, each, kind = MULTIPLIED[shape]
    random = np.random.default_rng(7)
    whole = shape.endswith("s32")
    a, b = (random.integers(-8, 8, size).astype(np.float32) for size in ((16, depth), (depth, 8)))
    if kind == np.uint8:
        a, b = abs(a), abs(b)
    c = random.integers(-50, 50, (16, 8)).astype(np.int32 if whole else np.float32)
    wanted = a @ b + c
    convert = bfloat if kind == np.uint16 else lambda x: x.astype(kind)
    first, second = spread(convert(a), each, second=False), spread(convert(b), each, second=True)
    sums = np.array([[c[lane // 4 + 8 * (r // 2), 2 * (lane % 4) + r % 2] for r in range(4)] for lane in range(LANES)])
    of_a, of_b = first.shape[1], second.shape[1]
    loads = "".join(
        f"mul.lo.u32 %r0, %i, {4 * count}; cvt.u64.u32 %a0, %r0; add.u64 %a0, %a0, %p{pointer};\n"
        + "".join(f"ld.global.u32 %r{base + k}, [%a0+{4 * k}];\n" for k in range(count))
        for pointer, base, count in ((1, 10, of_a), (2, 14, of_b), (3, 16, 4))
    )
    names = [
        ", ".join(f"%r{base + k}" for k in range(count)) for base, count in ((20, 4), (10, of_a), (14, of_b), (16, 4))
    ]
    body = (
        f"{loads}mma.sync.aligned.{shape} {', '.join('{' + n + '}' for n in names)};\n"
        "mul.wide.u32 %a0, %i, 16; add.u64 %a0, %a0, %p0; st.global.v4.u32 [%a0], {%r20, %r21, %r22, %r23};"
    )
    inputs = [x.reshape(-1).view(np.uint32) for x in (first.copy(), second.copy(), sums)]
    found = card.compute(kernel(body, 4), np.zeros(128, np.uint32), *inputs).reshape(LANES, 4).view(sums.dtype)
    for lane in range(LANES):
        for r in range(4):
            assert found[lane, r] == wanted[lane // 4 + 8 * (r // 2), 2 * (lane % 4) + r % 2]


@pytest.mark.parametrize("transposed", [False, True])
def test_warp_loads_matrices_from_shared_memory(card: Runner, transposed: bool) -> None:
    body = (
        "shl.b32 %r1, %i, 4; mov.u32 %r2, s; add.u32 %r2, %r2, %r1; mul.wide.u32 %a1, %i, 16; add.u64 %a1, %a1, %p1;\n"
        "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%a1]; st.shared.v4.u32 [%r2], {%r4, %r5, %r6, %r7}; bar.sync 0;\n"
        f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.shared.b16 {{%r8, %r9, %r10, %r11}}, [%r2];\n"
        "mul.wide.u32 %a0, %i, 16; add.u64 %a0, %a0, %p0; st.global.v4.u32 [%a0], {%r8, %r9, %r10, %r11};"
    )
    matrices = np.arange(256, dtype=np.uint16)
    text = kernel(body, 2, ".shared .align 16 .b8 s[512];\n")
    found = card.compute(text, np.zeros(128, np.uint32), matrices.view(np.uint32)).view(np.uint16).reshape(32, 4, 2)
    shaped = matrices.reshape(4, 8, 8)
    for lane in range(LANES):
        for k in range(4):
            m = shaped[k].T if transposed else shaped[k]
            assert found[lane, k].tolist() == m[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2].tolist()


def test_vector_of_atomics_adds_each_of_its_elements(card: Runner) -> None:
    body = (
        "mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; red.global.add.v2.f32 [%p0], {%f1, %f2};\n"
        "atom.global.v2.f32.add {%f3, %f4}, [%p0+8], {%f2, %f1};"
    )
    assert card.compute(kernel(body, 1), np.zeros(4, np.float32), grid=3).tolist() == [96, 192, 192, 96]


@pytest.mark.parametrize("operation", ["add", "mul", "sub"])
def test_numbers_of_16_bits_are_rounded_once(card: Runner, operation: str) -> None:
    random = np.random.default_rng(11)
    x, y = (random.normal(size=LANES).astype(np.float32) for _ in range(2))
    compute = {"add": np.add, "mul": np.multiply, "sub": np.subtract}[operation]
    bits = [bfloat(x), bfloat(y)]
    wanted = bfloat(compute(*map(from_bfloat, bits)))
    text = elementwise(f"{operation}.bf16", "u16 u16 u16", "%h0 %h1 %h2")
    np.testing.assert_array_equal(card.compute(text, np.zeros(LANES, np.uint16), *bits), wanted)
    halves = [v.astype(np.float16) for v in (x, y)]
    text = elementwise(f"{operation}.f16", "u16 u16 u16", "%h0 %h1 %h2")
    found = card.compute(text, np.zeros(LANES, np.uint16), *(h.view(np.uint16) for h in halves))
    np.testing.assert_array_equal(found.view(np.float16), compute(*halves))


def test_barrier_counts_and_combines_what_all_threads_say(card: Runner) -> None:
    body = (
        "setp.lt.u32 %q1, %t2, 40; bar.red.popc.u32 %r1, 0, %q1; bar.red.and.pred %q2, 0, %q1; bar.red.or.pred %q3, 0, %q1;\n"
        "barrier.red.popc.sync.u32 %r2, 1, 96, !%q1; selp.u32 %r3, 1, 0, %q2; selp.u32 %r4, 1, 0, %q3;\n"
        "mul.wide.u32 %a0, %i, 16; add.u64 %a0, %a0, %p0; st.global.v4.u32 [%a0], {%r1, %r2, %r3, %r4};"
    )
    found = card.compute(kernel(body, 1), np.zeros(4 * 96, np.uint32), block=96).reshape(96, 4)
    assert np.unique(found, axis=0).tolist() == [[40, 56, 0, 1]]


def test_heap_of_the_card_gives_each_thread_memory_of_its_own(card: Runner) -> None:
    declarations = ".extern .func (.param .b64 r) malloc(.param .b64 n);\n.extern .func free(.param .b64 p);\n"
    body = (
        "{ .param .b64 n; .param .b64 r; st.param.b64 [n], 64; call.uni (r), malloc, (n); ld.param.b64 %d1, [r]; }\n"
        "st.u32 [%d1+60], %i; bar.sync 0; ld.u32 %r0, [%d1+60]; mul.wide.u32 %a0, %i, 4; add.u64 %a0, %a0, %p0;\n"
        "st.global.u32 [%a0], %r0; { .param .b64 p; st.param.b64 [p], %d1; call.uni free, (p); }\n"
        "{ .param .b64 n; .param .b64 r; st.param.b64 [n], 1073741824; call.uni (r), malloc, (n); ld.param.b64 %d2, [r]; }\n"
        "setp.ne.u64 %q1, %d2, 0; @%q1 trap;"
    )
    text = kernel(body, 1, declarations)
    assert card.compute(text, np.zeros(64, np.uint32), block=64).tolist() == list(range(64))


def test_failed_assertion_says_which_and_is_710(tmp_path_factory: pytest.TempPathFactory) -> None:
    card = Runner(tmp_path_factory.mktemp("ptx"))
    declarations = (
        ".global .align 1 .b8 m[3] = {120, 62, 0};\n.global .align 1 .b8 f[4] = {97, 46, 99, 0};\n"
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
    )
    body = (
        "setp.ne.u32 %q1, %i, 5; @%q1 bra FINE; mov.u64 %d1, m; mov.u64 %d2, f;\n"
        "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;\nst.param.b64 [a], %d1;\n"
        "st.param.b64 [b], %d2;\n"
        "st.param.b32 [c], 42; st.param.b64 [d], %d2; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }\nFINE:"
    )
    answer = card.run(kernel(body, 0, declarations), "k")
    assert (answer["load"], answer["launch"], answer["result"]) == (0, 0, 710), answer["errors"]
    assert "a.c:42: a.c: block: [0,0,0], thread: [5,0,0] Assertion `x>` failed." in card.said()
