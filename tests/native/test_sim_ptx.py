"""Tests of the PTX interpreter of the simulated card: each family of operations against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native.ptx_world import HEAD, Runner, elementwise, kernel

LANES = 64
Array = np.ndarray[Any, Any]
EDGES = [0, 1, 2, 3, 31, 32, 63, 64, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("ptx"))
    yield runner
    runner.close()


def popcount(x: Array) -> Array:
    return np.array([int(v).bit_count() for v in x])


def high(x: Array, y: Array, bits: int) -> list[int]:
    return [(int(a) * int(b) >> bits) % 2**bits for a, b in zip(x, y, strict=True)]


STORE = "mul.wide.u32 %a0, %i, 4; add.u64 %a0, %a0, %p0; st.global.u32 [%a0], %r0;"

INTEGERS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "add.u32": ("u32 u32 u32", "%r0 %r1 %r2", lambda x, y: x + y),
    "sub.s64": ("u64 u64 u64", "%d0 %d1 %d2", lambda x, y: x - y),
    "mul.lo.u64": ("u64 u64 u64", "%d0 %d1 %d2", lambda x, y: x * y),
    "mul.hi.u32": ("u32 u32 u32", "%r0 %r1 %r2", lambda x, y: high(x, y, 32)),
    "mul.hi.u64": ("u64 u64 u64", "%d0 %d1 %d2", lambda x, y: high(x, y, 64)),
    "mul.hi.s32": ("u32 s32 s32", "%r0 %r1 %r2", lambda x, y: high(x, y, 32)),
    "mul.wide.s32": ("s64 s32 s32", "%d0 %r1 %r2", lambda x, y: x.astype(np.int64) * y),
    "mul.wide.u16": ("u32 u16 u16", "%r0 %h1 %h2", lambda x, y: x.astype(np.uint32) * y),
    "mad.lo.s32": ("u32 u32 u32 u32", "%r0 %r1 %r2 %r3", lambda x, y, z: x * y + z),
    "mad.wide.u32": ("u64 u32 u32 u64", "%d0 %r1 %r2 %d3", lambda x, y, z: x.astype(np.uint64) * y + z),
    "min.s32": ("s32 s32 s32", "%r0 %r1 %r2", np.minimum),
    "max.u64": ("u64 u64 u64", "%d0 %d1 %d2", np.maximum),
    "neg.s32": ("u32 u32", "%r0 %r1", lambda x: 0 - x),
    "and.b32": ("u32 u32 u32", "%r0 %r1 %r2", np.bitwise_and),
    "xor.b64": ("u64 u64 u64", "%d0 %d1 %d2", np.bitwise_xor),
    "not.b16": ("u16 u16", "%h0 %h1", np.invert),
    "popc.b64": ("u32 u64", "%r0 %d1", popcount),
    "clz.b32": ("u32 u32", "%r0 %r1", lambda x: [32 - int(v).bit_length() for v in x]),
    "brev.b32": ("u32 u32", "%r0 %r1", lambda x: [int(f"{v:032b}"[::-1], 2) for v in x]),
    "bfind.u32": ("u32 u32", "%r0 %r1", lambda x: [(int(v).bit_length() - 1) % 2**32 for v in x]),
    "shl.b32": (
        "u32 u32 u32",
        "%r0 %r1 %r2",
        lambda x, y: [int(a) << int(b) if b < 32 else 0 for a, b in zip(x, y, strict=False)],
    ),
    "shr.s32": (
        "s32 s32 u32",
        "%r0 %r1 %r2",
        lambda x, y: [int(a) >> min(int(b), 31) for a, b in zip(x, y, strict=False)],
    ),
    "shf.l.wrap.b32": (
        "u32 u32 u32 u32",
        "%r0 %r1 %r2 %r3",
        lambda x, y, z: [((int(b) << 32 | int(a)) << (int(c) & 31)) >> 32 for a, b, c in zip(x, y, z, strict=False)],
    ),
    "bfe.u32": (
        "u32 u32 u32 u32",
        "%r0 %r1 %r2 %r3",
        lambda x, y, z: [
            int(a) >> (b & 255) & ((1 << (c & 255)) - 1) for a, b, c in zip(x, y.tolist(), z.tolist(), strict=False)
        ],
    ),
    "sad.u32": ("u32 u32 u32 u32", "%r0 %r1 %r2 %r3", lambda x, y, z: np.maximum(x, y) - np.minimum(x, y) + z),
    "dp4a.u32.u32": (
        "u32 u32 u32 u32",
        "%r0 %r1 %r2 %r3",
        lambda x, y, z: (
            (x.view(np.uint8).astype(np.uint32) * y.view(np.uint8)).reshape(-1, 4).sum(axis=1, dtype=np.uint32) + z
        ),
    ),
    "cvt.s64.s32": ("s64 s32", "%d0 %r1", lambda x: x),
    "cvt.u32.u64": ("u32 u64", "%r0 %d1", lambda x: x),
    "cvt.sat.u16.u32": ("u16 u32", "%h0 %r1", lambda x: np.minimum(x, 65535)),
    "cvt.rn.f32.s32": ("f32 s32", "%f0 %r1", lambda x: x.astype(np.float32)),
    "cvt.rn.f64.u64": ("f64 u64", "%g0 %d1", lambda x: x.astype(np.float64)),
}


@pytest.mark.parametrize("instruction", INTEGERS)
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_integer_operations_give_what_numpy_gives(card: Runner, instruction: str, data: st.DataObject) -> None:
    types, registers, reference = INTEGERS[instruction]
    kinds = [np.dtype({"u": "uint", "s": "int", "f": "float"}[t[0]] + t[1:]) for t in types.split()]
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    inputs = [
        np.where(
            random.random(LANES) < 0.4,
            random.choice(np.array(EDGES, np.uint64), LANES),
            random.integers(0, 2**64 - 1, LANES, np.uint64, endpoint=True),
        )
        .astype(np.dtype(f"uint{8 * kind.itemsize}"))
        .view(kind)
        for kind in kinds[1:]
    ]
    with np.errstate(over="ignore"):
        values = reference(*inputs)
    bits = 8 * kinds[0].itemsize
    if kinds[0].kind == "f":
        wanted = np.asarray(values)
    else:
        listed = values.tolist() if isinstance(values, np.ndarray) else values
        wanted = np.array([int(v) % 2**bits for v in listed], f"uint{bits}").view(kinds[0])
    text = elementwise(instruction, types, registers)
    found = card.compute(text, np.zeros(LANES, kinds[0]), *inputs, grid=2)
    np.testing.assert_array_equal(found, wanted)


FLOATS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "add.f32": ("f32 f32 f32", "%f0 %f1 %f2", np.add),
    "mul.rn.f64": ("f64 f64 f64", "%g0 %g1 %g2", np.multiply),
    "div.rn.f32": ("f32 f32 f32", "%f0 %f1 %f2", np.divide),
    "sub.f64": ("f64 f64 f64", "%g0 %g1 %g2", np.subtract),
    "min.f32": ("f32 f32 f32", "%f0 %f1 %f2", np.fmin),
    "max.f64": ("f64 f64 f64", "%g0 %g1 %g2", np.fmax),
    "sqrt.rn.f64": ("f64 f64", "%g0 %g1", np.sqrt),
    "abs.f32": ("f32 f32", "%f0 %f1", np.abs),
    "neg.f64": ("f64 f64", "%g0 %g1", np.negative),
    "rcp.rn.f32": ("f32 f32", "%f0 %f1", np.reciprocal),
    "cvt.f64.f32": ("f64 f32", "%g0 %f1", lambda x: x.astype(np.float64)),
    "cvt.rn.f32.f64": ("f32 f64", "%f0 %g1", lambda x: x.astype(np.float32)),
    "cvt.rzi.s32.f32": (
        "s32 f32",
        "%r0 %f1",
        lambda x: np.nan_to_num(np.trunc(x.astype(np.float64))).clip(-(2.0**31), 2.0**31 - 1).astype(np.int64),
    ),
    "cvt.rni.f64.f64": ("f64 f64", "%g0 %g1", np.rint),
    "cvt.rmi.f32.f32": ("f32 f32", "%f0 %f1", np.floor),
    "cvt.rn.f16.f32": ("u16 f32", "%h0 %f1", lambda x: x.astype(np.float16).view(np.uint16)),
}
REALS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.5,
    2.5,
    65504.0,
    65520.0,
    1e-8,
    6e-5,
    3e38,
    1e300,
    float("inf"),
    -float("inf"),
    float("nan"),
]


@pytest.mark.parametrize("instruction", FLOATS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=4, deadline=None)
def test_floating_operations_give_what_numpy_gives_to_the_last_bit(card: Runner, instruction: str, seed: int) -> None:
    types, registers, reference = FLOATS[instruction]
    kinds = [np.dtype({"u": "uint", "s": "int", "f": "float"}[t[0]] + t[1:]) for t in types.split()]
    random = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        inputs = [
            np.where(
                random.random(LANES) < 0.4,
                random.choice(REALS, LANES),
                random.normal(size=LANES) * 10.0 ** random.integers(-12, 12, LANES),
            ).astype(kind)
            for kind in kinds[1:]
        ]
        wanted = np.asarray(reference(*inputs)).astype(kinds[0])
    found = card.compute(elementwise(instruction, types, registers), np.zeros(LANES, kinds[0]), *inputs, grid=2)
    if instruction == "cvt.rn.f16.f32":
        found, wanted = found.view(np.float16), wanted.view(np.float16)
    np.testing.assert_array_equal(found, wanted)


def test_fused_product_is_rounded_once(card: Runner) -> None:
    random = np.random.default_rng(3)
    x, y, z = (random.normal(size=LANES).astype(np.float32) for _ in range(3))
    wanted = (x.astype(np.float64) * y + z).astype(np.float32)
    found = card.compute(
        elementwise("fma.rn.f32", "f32 f32 f32 f32", "%f0 %f1 %f2 %f3"), np.zeros(LANES, np.float32), x, y, z, grid=2
    )
    np.testing.assert_array_equal(found, wanted)


def test_rounding_mode_holds_for_its_operation_only(card: Runner) -> None:
    one, third = np.full(32, 1, np.float32), np.full(32, 3, np.float32)
    nearest = np.float32(1) / np.float32(3)
    down = card.compute(elementwise("div.rm.f32", "f32 f32 f32", "%f0 %f1 %f2"), np.zeros(32, np.float32), one, third)
    after = card.compute(elementwise("div.rn.f32", "f32 f32 f32", "%f0 %f1 %f2"), np.zeros(32, np.float32), one, third)
    assert down[0] == np.nextafter(nearest, np.float32(0))
    assert after[0] == nearest


def test_rounding_mode_is_not_that_of_a_warp_whose_turn_comes_next(card: Runner) -> None:
    body = (
        "setp.ne.u32 %q2, 0, 0; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40400000; mov.u32 %r1, 0; setp.lt.u32 %q1, %t2, 32;\n"
        "div.rn.f32 %f4, %f1, %f2;\nLOOP: @%q1 div.rm.f32 %f3, %f1, %f2; @!%q1 div.rn.f32 %f3, %f1, %f2;\n"
        "@!%q1 setp.ne.f32 %q2, %f3, %f4; @%q2 bra BAD;\n"
        "add.u32 %r1, %r1, 1; setp.lt.u32 %q3, %r1, 5000; @%q3 bra LOOP; mov.u32 %r0, 1; bra.uni END;\n"
        "BAD: mov.u32 %r0, 0;\nEND:\n" + STORE
    )
    assert set(card.compute(kernel(body, 1), np.zeros(64, np.uint32), block=64).tolist()) == {1}


def test_carries_go_from_one_addition_to_the_next(card: Runner) -> None:
    body = (
        "mul.wide.u32 %a1, %i, 8; add.u64 %a2, %p1, %a1; add.u64 %a3, %p2, %a1; add.u64 %a0, %p0, %a1;\n"
        "ld.global.v2.u32 {%r0, %r1}, [%a2]; ld.global.v2.u32 {%r2, %r3}, [%a3];\n"
        "add.cc.u32 %r4, %r0, %r2; addc.u32 %r5, %r1, %r3; st.global.v2.u32 [%a0], {%r4, %r5};"
    )
    random = np.random.default_rng(5)
    x, y = (random.integers(0, 2**64 - 1, 32, np.uint64) for _ in range(2))
    np.testing.assert_array_equal(card.compute(kernel(body, 3), np.zeros(32, np.uint64), x, y), x + y)


def test_lanes_that_part_in_loops_and_branches_meet_again(card: Runner) -> None:
    body = (
        "mov.u32 %r0, 0; and.b32 %r1, %i, 7;\nLOOP: setp.ge.u32 %q0, %r0, %r1; @%q0 bra DONE;\n"
        "and.b32 %r2, %i, 1; setp.eq.u32 %q1, %r2, 0; @%q1 bra EVEN; add.u32 %r0, %r0, 1; bra.uni NEXT;\n"
        "EVEN: add.u32 %r0, %r0, 2;\nNEXT: bra LOOP;\nDONE: activemask.b32 %r3; setp.ne.u32 %q2, %r3, -1;\n"
        "@%q2 mov.u32 %r0, 99;\n" + STORE
    )
    wanted = [next(v for v in range(0, 99, 1 + (i % 2 == 0)) if v >= i % 8) for i in range(32)]
    assert card.compute(kernel(body, 1), np.zeros(32, np.uint32)).tolist() == wanted


def test_lock_between_lanes_of_one_warp_is_passed_on(card: Runner) -> None:
    body = (
        "AGAIN: atom.global.cas.b32 %r1, [%p1], 0, 1; setp.ne.u32 %q0, %r1, 0; @%q0 bra AGAIN;\n"
        "ld.volatile.global.u32 %r0, [%p0]; add.u32 %r0, %r0, 1; st.volatile.global.u32 [%p0], %r0;\n"
        "membar.gl; atom.global.exch.b32 %r2, [%p1], 0;"
    )
    total = card.compute(kernel(body, 2), np.zeros(1, np.uint32), np.zeros(1, np.uint32), grid=2, block=32)
    assert total[0] == 64


def test_blocks_may_wait_for_blocks_that_begin_later(card: Runner) -> None:
    body = (
        "atom.global.add.u32 %r1, [%p0], 1;\nWAIT: ld.volatile.global.u32 %r2, [%p0]; setp.lt.u32 %q0, %r2, 40;\n"
        "@%q0 bra WAIT;"
    )
    assert card.compute(kernel(body, 1), np.zeros(1, np.uint32), grid=40, block=1)[0] == 40


def test_shared_memory_is_one_blocks_own_and_a_barrier_is_for_all_of_its_warps(card: Runner) -> None:
    declarations = ".shared .align 4 .u32 s[128];\n.extern .shared .align 4 .b8 dynamic[];"
    body = (
        "mov.u32 %r1, s; shl.b32 %r2, %t2, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %i; mov.u32 %r8, dynamic;\n"
        "add.u32 %r8, %r8, %r2; st.shared.u32 [%r8], 7; bar.sync 0;\n"
        "xor.b32 %r4, %r2, 508; add.u32 %r5, %r1, %r4; ld.shared.u32 %r0, [%r5];\n"
        "cvt.u64.u32 %d1, %r8; cvta.shared.u64 %d2, %d1; ld.u32 %r9, [%d2]; add.u32 %r0, %r0, %r9;\n" + STORE
    )
    found = card.compute(kernel(body, 1, declarations), np.zeros(256, np.uint32), grid=2, block=128, shared=512)
    assert found.tolist() == [b * 128 + (127 - t) + 7 for b in range(2) for t in range(128)]


def test_threads_that_return_early_are_not_waited_for_at_a_barrier(card: Runner) -> None:
    body = (
        "setp.ge.u32 %q0, %t2, 40; @%q0 bra END; mov.u32 %r1, s; shl.b32 %r2, %t2, 2; add.u32 %r3, %r1, %r2;\n"
        "st.shared.u32 [%r3], %t2; bar.sync 0; sub.u32 %r4, 156, %r2; add.u32 %r4, %r4, %r1; ld.shared.u32 %r0, [%r4];\n"
        + STORE
        + "\nEND:"
    )
    found = card.compute(kernel(body, 1, ".shared .align 4 .u32 s[40];"), np.full(64, 99, np.uint32), block=64)
    assert found.tolist() == [*range(39, -1, -1), *[99] * 24]


def test_warps_shuffle_vote_match_and_reduce(card: Runner) -> None:
    body = (
        "mov.u32 %r1, %laneid; shfl.sync.bfly.b32 %r2, %r1, 3, 31, -1; shfl.sync.down.b32 %r3|%q1, %r1, 30, 31, -1;\n"
        "setp.lt.u32 %q0, %r1, 5; vote.sync.ballot.b32 %r4, %q0, -1; shr.u32 %r5, %r1, 4; match.any.sync.b32 %r6, %r5, -1;\n"
        "redux.sync.add.u32 %r7, %r1, -1; mul.wide.u32 %a0, %i, 16; add.u64 %a0, %a0, %p0; selp.u32 %r3, 1, 0, %q1;\n"
        "add.u32 %r4, %r4, %r3; st.global.v4.u32 [%a0], {%r2, %r4, %r6, %r7};"
    )
    found = card.compute(kernel(body, 1), np.zeros(128, np.uint32)).reshape(32, 4)
    assert found[:, 0].tolist() == [i ^ 3 for i in range(32)]
    assert found[:, 1].tolist() == [31 + (i < 2) for i in range(32)]
    assert found[:, 2].tolist() == [0xFFFF if i < 16 else 0xFFFF0000 for i in range(32)]
    assert set(found[:, 3].tolist()) == {sum(range(32))}


@pytest.mark.parametrize("operation", ["add.u32", "add.f32", "max.s32", "or.b32", "add.f64", "inc.u32"])
def test_atomics_of_many_blocks_lose_nothing(card: Runner, operation: str) -> None:
    kind = {"f32": np.float32, "f64": np.float64, "s32": np.int32}.get(operation.split(".")[1], np.uint32)
    operand = {"f32": "%f1", "f64": "%g1"}.get(operation.split(".")[1], "%r1")
    make = "mov.u32 %r1, %i; mov.f32 %f1, 0f3F800000; mov.f64 %g1, 0d3FF0000000000000;\n"
    if operation.startswith("inc"):
        make += "mov.u32 %r1, -1;\n"
    body = f"{make}red.global.{operation} [%p0], {operand};"
    total = card.compute(kernel(body, 1), np.zeros(1, kind), grid=20, block=128)[0]
    count = 20 * 128
    wanted = {"add.u32": sum(range(count)), "max.s32": count - 1, "or.b32": 4095}.get(operation, count)
    assert total == wanted


CALLS = (
    HEAD
    + """
.func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %a; ld.param.u32 %a, [x];
 add.u32 %a, %a, %a; st.param.b32 [r], %a; ret; }
.func (.param .b32 r) factorial(.param .b32 x)
{
 .reg .b32 %a<4>; .reg .pred %p; .local .align 4 .b8 depot[8];
 ld.param.u32 %a0, [x]; setp.lt.u32 %p, %a0, 2; @%p bra ONE; st.local.u32 [depot+4], %a0; sub.u32 %a1, %a0, 1;
 { .param .b32 x1; .param .b32 r1; st.param.b32 [x1], %a1; call.uni (r1), factorial, (x1); ld.param.b32 %a2, [r1]; }
 ld.local.u32 %a0, [depot+4]; mul.lo.u32 %a2, %a2, %a0; st.param.b32 [r], %a2; ret;
ONE: mov.u32 %a3, 1; st.param.b32 [r], %a3; ret;
}
.global .align 8 .u64 table[2] = { twice, factorial };
.visible .entry k(.param .u64 p0)
{
 .reg .b32 %r<8>; .reg .b64 %d<8>;
 mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 1; mul.wide.u32 %d0, %r1, 8; mov.u64 %d1, table;
 add.u64 %d1, %d1, %d0; ld.global.u64 %d2, [%d1];
 shr.u32 %r2, %r0, 2;
 { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2;
   proto: .callprototype (.param .b32 _) _ (.param .b32 _); call (b), %d2, (a), proto; ld.param.b32 %r3, [b]; }
 ld.param.u64 %d3, [p0]; mul.wide.u32 %d4, %r0, 4; add.u64 %d3, %d3, %d4; st.global.u32 [%d3], %r3; ret;
}
"""
)


def test_functions_are_called_by_name_by_pointer_and_by_themselves(card: Runner) -> None:
    factorial = [1, 1, 2, 6, 24, 120, 720, 5040]
    wanted = [factorial[i // 4] if i % 2 else 2 * (i // 4) for i in range(32)]
    assert card.compute(CALLS, np.zeros(32, np.uint32)).tolist() == wanted


def test_variables_begin_with_what_their_initialisers_say(card: Runner) -> None:
    declarations = (
        ".const .align 4 .f32 c[3] = { 0f3F800000, 0f40000000 };\n.global .align 4 .u32 g[2] = { 5, -1 };\n"
        ".global .align 8 .u64 there = generic(g);\n"
    )
    body = (
        "ld.const.f32 %f1, [c+4]; cvt.rzi.u32.f32 %r1, %f1; ld.global.u64 %d1, [there]; ld.u32 %r2, [%d1+4];\n"
        "add.u32 %r0, %r1, %r2;" + STORE
    )
    assert set(card.compute(kernel(body, 1, declarations), np.zeros(32, np.uint32)).tolist()) == {1}


def test_element_of_a_variable_is_an_address(card: Runner) -> None:
    declarations = ".global .align 4 .u32 g[4] = { 5, 6, 7, 8 };\n.shared .align 4 .b8 s[8];\n"
    body = (
        "mov.u64 %d1, g[2]; ld.global.u32 %r1, [%d1]; mov.u32 %r2, s[4]; st.shared.u32 [%r2], %r1;\n"
        "ld.shared.u32 %r0, [s+4];" + STORE
    )
    assert set(card.compute(kernel(body, 1, declarations), np.zeros(32, np.uint32)).tolist()) == {7}


def test_modules_are_linked_and_each_keeps_its_own_names(card: Runner) -> None:
    library = HEAD + (
        ".global .align 4 .u32 mine = 10;\n.visible .func (.param .b32 r) given() "
        "{ .reg .b32 %a; ld.global.u32 %a, [mine]; st.param.b32 [r], %a; ret; }\n"
    )
    main = HEAD + (
        ".global .align 4 .u32 mine = 3;\n.extern .func (.param .b32 r) given();\n.visible .entry k(.param .u64 p0)\n{\n"
        ".reg .b32 %a<3>; .reg .b64 %d; { .param .b32 r; call.uni (r), given; ld.param.b32 %a0, [r]; }\n"
        "ld.global.u32 %a1, [mine]; add.u32 %a0, %a0, %a1; ld.param.u64 %d, [p0]; st.global.u32 [%d], %a0; ret; }\n"
    )
    answer = card.run([library, main], "k", np.zeros(1, np.uint32))
    assert answer["result"] == 0, answer
    assert answer["arrays"][0][0] == 13


@pytest.mark.parametrize(
    ("body", "result", "words"),
    [
        ("mov.u64 %d1, 64; ld.global.u32 %r1, [%d1];", 700, "illegal address 0x40"),
        ("ld.global.u32 %r1, [%p0+4096];", 700, "illegal address"),
        ("ld.shared.u32 %r1, [4096];", 700, "illegal address"),
        ("ld.global.u32 %r1, [%p0+2];", 716, "misaligned address"),
        ("trap;", 719, "trap"),
        ("call k, (%p0);", 801, "which cannot be called"),
        ("mov.u64 %d1, 72057594037927936; ld.u32 %r1, [%d1+8];", 700, "illegal address"),
        ("setp.eq.u32 %q0, %t2, 0; @%q0 bar.sync 1, 64;", 719, "never come"),
    ],
)
def test_what_a_kernel_does_wrong_is_the_error_of_a_card_and_says_where(
    tmp_path: Path, body: str, result: int, words: str
) -> None:
    card = Runner(tmp_path)
    answer = card.run(kernel(body, 1), "k", np.zeros(4, np.uint32))
    assert answer["result"] == result
    assert words in card.said()
    if "never" not in words:
        assert "line 11 of the PTX" in card.said()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("add.s32 %r1, %r2;", "line 11; error   : Arguments mismatch for instruction 'add'"),
        ("add.s32 %r1, %r2, %d1;", "line 11; error   : Arguments mismatch for instruction 'add'"),
        ("frobnicate.u32 %r1, %r2;", "line 11; error   : Not a name of any known instruction: 'frobnicate.u32'"),
        ("ld.global.u32 %r1, [nowhere];", "line 11; error   : Unknown symbol 'nowhere'"),
        ("bra NOWHERE;", "line 11; error   : Unknown symbol 'NOWHERE'"),
        ("mov.u32 %r1 %r2;", "line 11; error   : Parsing error near '%r2': syntax error"),
        ("mov.pred %q1, {%q2, %q3};", "line 11; error   : Arguments mismatch for instruction 'mov'"),
        ("atom.global.add.pred %q1, [%p0], %q2;", "line 11; error   : Arguments mismatch for instruction 'atom'"),
        ("match.any.sync.b16 %r1, %h1, -1;", "line 11; error   : Arguments mismatch for instruction 'match'"),
        ("cvta.global.pred %q1, %q2;", "line 11; error   : Arguments mismatch for instruction 'cvta'"),
        ("cvt.u32.b128 %r1, 5;", "line 11; error   : Arguments mismatch for instruction 'cvt'"),
        (
            ".reg .b32 %z<4000000>, %y<4000000>, %x<4000000>, %w<4000000>, %v<4000000>;",
            "Out of memory, or larger than can be",
        ),
    ],
)
def test_error_in_the_text_is_in_the_log_with_its_line(card: Runner, body: str, complaint: str) -> None:
    answer = card.run(kernel(body, 1))
    assert answer["load"] == 218
    assert complaint in answer["errors"]


def test_newer_ptx_than_the_drivers_is_refused_as_such(card: Runner) -> None:
    answer = card.run(".version 9.9\n.target sm_80\n.address_size 64\n")
    assert answer["load"] == 222
    assert "Unsupported .version 9.9" in answer["errors"]


def test_kernel_with_textures_loads_and_is_refused_at_its_launch(card: Runner) -> None:
    body = "mov.u64 %d1, 0; tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%d1, {%r1}];"
    answer = card.run(kernel(body, 0), "k")
    assert (answer["load"], answer["launch"]) == (0, 801)
    assert "Instruction 'tex.1d.v4.f32.s32' is not known to the simulation: 'k' cannot be launched" in answer["notes"]


def test_comparisons_of_halves_and_of_pairs_of_them_give_numbers_masks_and_predicates(card: Runner) -> None:
    body = (
        "mov.u32 %r1, 0x40003C00; mov.u32 %r2, 0x40007E00; mov.u16 %h1, 0x3C00; mov.u16 %h2, 0x4000;\n"
        "set.eq.f16x2.f16x2 %r3, %r1, %r2; set.eq.u32.f16x2 %r4, %r1, %r2; set.lt.f16.f16 %h3, %h1, %h2;\n"
        "set.nan.bf16x2.bf16x2 %r5, %r1, %r2; setp.eq.f16x2 %q0|%q1, %r1, %r2; cvt.u32.u16 %r6, %h3;\n"
        "selp.u32 %r7, 1, 0, %q0; selp.u32 %r8, 2, 0, %q1; add.u32 %r7, %r7, %r8; mul.wide.u32 %a0, %i, 20;\n"
        "add.u64 %a0, %a0, %p0; st.global.u32 [%a0], %r3; st.global.u32 [%a0+4], %r4; st.global.u32 [%a0+8], %r5;\n"
        "st.global.u32 [%a0+12], %r6; st.global.u32 [%a0+16], %r7;"
    )
    found = card.compute(kernel(body, 1), np.zeros(160, np.uint32)).reshape(32, 5)
    assert set(map(tuple, found.tolist())) == {(0x3C000000, 0xFFFF0000, 0, 0x3C00, 2)}


def test_directives_need_no_space_between_them(card: Runner) -> None:
    body = "{.reg.b16 own; mov.u16 own, 7; cvt.u32.u16 %r0, own;}\n" + STORE
    assert set(card.compute(kernel(body, 1), np.zeros(32, np.uint32)).tolist()) == {7}


def test_little_beyond_what_was_asked_for_is_there_on_a_card_and_here(card: Runner) -> None:
    assert card.run(kernel("ld.global.u32 %r1, [%p0+508];", 1), "k", np.zeros(1, np.uint32))["result"] == 0
    assert card.run(kernel("ld.global.u32 %r1, [%p0+4096];", 1), "k", np.zeros(1, np.uint32))["result"] == 700


def test_what_a_kernel_says_runs_unless_its_module_leaves_that_to_its_name(card: Runner) -> None:
    text = kernel(f"mov.u32 %r0, 7;\n{STORE}", 2).replace(".entry k(", ".entry touch(")
    by_name = text.replace(HEAD, f"{HEAD}.global .u32 calabash_kernels_by_name;\n")
    out, size = np.zeros(32, np.uint32), np.zeros(1, np.uint64)
    assert set(card.run(text, "touch", out, size)["arrays"][0].tolist()) == {7}
    assert card.run(by_name, "touch", out, size)["result"] == 700, "the driver's own takes the address for a size"
