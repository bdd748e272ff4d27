"""PTX kernels of the benchmark, and the number of instructions that a thread of each executes."""

from __future__ import annotations

HEAD = """.version 8.0
.target sm_80
.address_size 64
"""
REGISTERS = ".reg .b64 %d<16>; .reg .b32 %r<32>; .reg .f32 %f<32>; .reg .pred %p<8>;\n"
BEGIN = (
    "ld.param.u64 %d0, [p0]; ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;\n"
    "mad.lo.u32 %r4, %r2, %r3, %r1; mul.wide.u32 %d1, %r4, 4; add.u64 %d0, %d0, %d1; cvt.rn.f32.u32 %f1, %r4;\n"
    "mov.f32 %f2, 0f3F7FFFFE; mov.f32 %f3, %f1; mov.f32 %f4, %f1; mov.u32 %r5, %r4; mov.u32 %r6, %r1; mov.u32 %r10, 0;\n"
)
LOOPS = {
    "integer": (
        "mad.lo.u32 %r5, %r5, 1664525, %r4; xor.b32 %r6, %r6, %r5; shl.b32 %r7, %r5, 13; add.u32 %r5, %r5, %r7;\n"
        "shr.u32 %r8, %r6, 17; sub.u32 %r6, %r6, %r8; and.b32 %r9, %r5, 65535; min.u32 %r6, %r6, %r5;\n"
    ),
    "fused multiply-add": (
        "fma.rn.f32 %f3, %f3, %f2, %f1; fma.rn.f32 %f4, %f4, %f2, %f3; fma.rn.f32 %f5, %f3, %f2, %f1;\n"
        "fma.rn.f32 %f6, %f4, %f2, %f5;\n"
        "fma.rn.f32 %f3, %f3, %f2, %f1; fma.rn.f32 %f4, %f4, %f2, %f3; fma.rn.f32 %f5, %f3, %f2, %f1;\n"
        "fma.rn.f32 %f6, %f4, %f2, %f5;\n"
    ),
    "shared memory": (
        "shl.b32 %r7, %r1, 2; ld.shared.u32 %r8, [%r7]; add.u32 %r5, %r5, %r8; st.shared.u32 [%r7], %r5;\n"
        "xor.b32 %r9, %r7, 4; ld.shared.u32 %r8, [%r9]; add.u32 %r5, %r5, %r8; st.shared.u32 [%r7], %r5;\n"
    ),
    "global memory": (
        "ld.global.u32 %r8, [%d0]; add.u32 %r5, %r5, %r8; st.global.u32 [%d0], %r5; ld.global.f32 %f5, [%d0];\n"
        "add.f32 %f3, %f3, %f1; st.global.f32 [%d0], %f3; ld.global.u32 %r8, [%d0]; st.global.u32 [%d0], %r8;\n"
    ),
    "divergent": (
        "and.b32 %r7, %r1, 1; setp.eq.u32 %p1, %r7, 0; @%p1 bra EVEN; add.u32 %r5, %r5, 3;\n"
        "xor.b32 %r6, %r6, %r5; sub.u32 %r5, %r5, 1;\n"
        "bra.uni JOIN;\nEVEN: add.u32 %r5, %r5, 5; xor.b32 %r6, %r6, %r5; sub.u32 %r5, %r5, 2;\n"
        "min.u32 %r6, %r6, %r5;\nJOIN: add.u32 %r6, %r6, 1;\n"
    ),
}
IN_A_LOOP = {"divergent": 8}  # instructions of a thread in one pass of the loop; 8 in all others
OVERHEAD = 3


def loop(name: str) -> str:
    """Return the PTX of kernel ``k(p0, n)``: the loop ``n`` times."""
    return (
        f"{HEAD}.visible .entry k(.param .u64 p0, .param .u32 n)\n{{\n{REGISTERS}.shared .align 4 .b8 s[4096];\n{BEGIN}AGAIN:\n"
        f"{LOOPS[name]}add.u32 %r10, %r10, 1; setp.lt.u32 %p0, %r10, %r0; @%p0 bra AGAIN;\n"
        "add.f32 %f3, %f3, %f4; cvt.rzi.u32.f32 %r11, %f3; xor.b32 %r5, %r5, %r6; xor.b32 %r5, %r5, %r11;\n"
        "st.global.u32 [%d0], %r5;\nret;\n}\n"
    )


def sgemm() -> str:
    """Return the PTX of kernel ``k(a, b, c, n)``: tiles of 16 by 16 in shared memory, one element of the result per thread."""
    steps = "".join(
        f"ld.shared.f32 %f2, [%r11+{4 * k}]; ld.shared.f32 %f3, [%r12+{1024 + 64 * k}]; fma.rn.f32 %f1, %f2, %f3, %f1;\n"
        for k in range(16)
    )
    return (
        f"{HEAD}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n{{\n{REGISTERS}"
        ".shared .align 4 .b8 tile[2048];\n"
        "ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; ld.param.u64 %d2, [c]; ld.param.u32 %r0, [n];\n"
        "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y;\n"
        "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y; shl.b32 %r5, %r3, 4; add.u32 %r5, %r5, %r1;\n"
        "shl.b32 %r6, %r4, 4; add.u32 %r6, %r6, %r2;\n"
        "mad.lo.u32 %r7, %r6, %r0, %r1; mul.wide.u32 %d3, %r7, 4; add.u64 %d0, %d0, %d3;\n"
        "mad.lo.u32 %r8, %r2, %r0, %r5; mul.wide.u32 %d4, %r8, 4;\n"
        "add.u64 %d1, %d1, %d4; shl.b32 %r9, %r2, 6; shl.b32 %r10, %r1, 2; mov.u32 %r13, tile;\n"
        "add.u32 %r11, %r13, %r9; add.u32 %r12, %r13, %r10;\n"
        "add.u32 %r14, %r11, %r10; mul.wide.u32 %d5, %r0, 64; mov.f32 %f1, 0f00000000; mov.u32 %r15, 0;\nAGAIN:\n"
        "ld.global.f32 %f4, [%d0]; ld.global.f32 %f5, [%d1]; st.shared.f32 [%r14], %f4;\n"
        "st.shared.f32 [%r14+1024], %f5; bar.sync 0;\n"
        f"{steps}bar.sync 0;\nadd.u64 %d0, %d0, 64; add.u64 %d1, %d1, %d5; add.u32 %r15, %r15, 16;\n"
        f"setp.lt.u32 %p0, %r15, %r0; @%p0 bra AGAIN;\n"
        "mad.lo.u32 %r7, %r6, %r0, %r5; mul.wide.u32 %d3, %r7, 4; add.u64 %d2, %d2, %d3; st.global.f32 [%d2], %f1;\nret;\n}\n"
    )


def long_text(kernels: int) -> str:
    """Return PTX of many kernels with some hundred instructions, branches and accesses each."""
    piece = f"{LOOPS['integer']}{LOOPS['global memory']}@%p1 bra LABEL;\n{LOOPS['shared memory']}LABEL:\n"
    body = "".join(piece.replace("LABEL", f"L{k}") for k in range(10))
    head = "(.param .u64 p0, .param .u32 n)\n{\n" + REGISTERS + ".shared .align 4 .b8 s[4096];\n"
    text = "".join(f".visible .entry k{n}{head}{BEGIN}{body}ret;\n}}\n" for n in range(kernels))
    return HEAD + text.replace("; ", ";\n")
