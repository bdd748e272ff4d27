"""PTX texts for the fuzzer: a kernel for every family of instructions, and kernels of random instructions."""

from __future__ import annotations

import random
from pathlib import Path

from tests.native.ptx_world import kernel

SEEDS = Path(__file__).with_name("ptx_seeds")
# An instruction and the rows of its registers: h 16 bits, r 32, d 64, f and g floating, q predicates.
INSTRUCTIONS = [line.split(" ") for line in (SEEDS / "instructions.txt").read_text().splitlines()]
STORE = "and.b32 %r1, %r1, 60; cvt.u64.u32 %d1, %r1; add.u64 %d1, %d1, %p0; st.global.u32 [%d1], %r"


def random_kernel(seed: int) -> str:
    """Return a well-typed kernel of random instructions with loops, branches and memory accesses."""
    r = random.Random(seed)
    lines = []
    for n in range(r.randrange(5, 40)):
        word, rows = r.choice(INSTRUCTIONS)
        operands = [f"%{row}{r.randrange(8 if row != 'r' else 32)}" for row in rows]
        lines.append(f"L{n}: {r.choice(['', '', '', '@%q1 ', '@!%q2 '])}{word} {', '.join(operands)};")
        if r.random() < 0.1:
            lines.append(f"@%q{r.randrange(4)} bra L{r.randrange(n + 1)};")
        if r.random() < 0.1:
            lines.append(f"{STORE}{r.randrange(8)};")
    return kernel("\n".join(lines), 1)


def seeds() -> list[str]:
    """Return texts that all compile."""
    families = [path.read_text() for path in sorted(SEEDS.glob("*.ptx"))]
    return [*families, *map(random_kernel, range(12))]
