"""Kernels in Python, compiled by numba-cuda. One line of JSON: what each of them gave, as a hash of its bytes."""

import hashlib
import json
import math

import numpy as np
from numba import cuda, float32, int32
from numba.cuda.core import config

config.CUDA_LOW_OCCUPANCY_WARNINGS = config.CUDA_WARN_ON_IMPLICIT_COPY = 0  # the grids are small on purpose
TILE = 16
found = {}


def keep(name, array):
    found[name] = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


@cuda.jit
def add(a, b, c):
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


@cuda.jit
def histogram(x, bins):
    own = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    if t < 32:
        own[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(own, x[i], 1)
    cuda.syncthreads()
    if t < 32:
        cuda.atomic.add(bins, t, own[t])


@cuda.jit(device=True)
def escapes(x, y, most):
    c, z = complex(x, y), 0j
    for i in range(most):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag >= 4:
            return i
    return most


@cuda.jit
def mandelbrot(image, left, top, step, most):
    x, y = cuda.grid(2)
    if y < image.shape[0] and x < image.shape[1]:
        image[y, x] = escapes(left + x * step, top + y * step, most)


@cuda.jit
def product(a, b, c):
    left, right = cuda.shared.array((TILE, TILE), float32), cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    total = float32(0)
    for k in range((a.shape[1] + TILE - 1) // TILE):
        left[i, j] = a[y, k * TILE + j] if y < a.shape[0] and k * TILE + j < a.shape[1] else 0
        right[i, j] = b[k * TILE + i, x] if x < b.shape[1] and k * TILE + i < b.shape[0] else 0
        cuda.syncthreads()
        for n in range(TILE):
            total += left[i, n] * right[n, j]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@cuda.reduce
def total_of(a, b):
    return a + b


@cuda.jit
def heat(old, new):
    y, x = cuda.grid(2)
    if 0 < y < old.shape[0] - 1 and 0 < x < old.shape[1] - 1:
        around = old[y - 1, x] + old[y + 1, x] + old[y, x - 1] + old[y, x + 1]
        new[y, x] = old[y, x] + 0.2 * (around - 4 * old[y, x])


@cuda.jit
def scan(x, out):
    i = cuda.grid(1)
    lane, value = cuda.laneid, x[i]
    step = 1
    while step < 32:
        other = cuda.shfl_up_sync(0xFFFFFFFF, value, step)
        if lane >= step:
            value += other
        step *= 2
    out[i] = value


@cuda.jit
def functions(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        out[0, i], out[1, i], out[2, i] = math.sin(v), math.exp(v), math.log(v)
        out[3, i], out[4, i], out[5, i] = math.tanh(v), math.erf(v), v**1.7
        out[6, i], out[7, i] = math.gamma(v), math.atan2(v, 2.0)


@cuda.jit("void(int64[:,::1])")
def rows(table):
    x = cuda.grid(1)
    if x >= table.shape[1]:
        return
    grid = cuda.cg.this_grid()
    for y in range(1, table.shape[0]):
        table[y, x] = table[y - 1, table.shape[1] - 1 - x] + x
        grid.sync()


random = np.random.default_rng(7)

a, b = random.random(100_003), random.random(100_003)
c = np.zeros_like(a)
add[(a.size + 255) // 256, 256](a, b, c)
np.testing.assert_array_equal(c, a + b)
keep("add", c)

x, bins = random.integers(0, 32, 50_000), np.zeros(32, np.int32)
histogram[20, 128](x, bins)
np.testing.assert_array_equal(bins, np.bincount(x, minlength=32))
keep("histogram", bins)

image = np.zeros((48, 64), np.int32)
mandelbrot[(4, 3), (16, 16)](image, -2.0, -1.2, 0.05, 60)
wanted = [[escapes.py_func(-2.0 + i * 0.05, -1.2 + j * 0.05, 60) for i in range(64)] for j in range(48)]
assert (image != np.array(wanted)).mean() < 0.01  # a fused product moves the border
keep("mandelbrot", image)

a, b = random.random((70, 50), np.float32), random.random((50, 90), np.float32)
c = np.zeros((70, 90), np.float32)
product[(6, 5), (TILE, TILE)](a, b, c)
np.testing.assert_allclose(c, a @ b, rtol=1e-5)
keep("product", c)

values = random.random(10_000)
total = total_of(values)
np.testing.assert_allclose(total, values.sum(), rtol=1e-12)
keep("reduction", np.array(total))

plate = np.zeros((40, 50))
plate[10:20, 10:30] = 100.0
old, new = cuda.to_device(plate), cuda.to_device(plate)
for _ in range(20):
    heat[(3, 4), (16, 16)](old, new)
    old, new = new, old
    inner = plate[1:-1, 1:-1]
    around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    plate[1:-1, 1:-1] = inner + 0.2 * (around - 4 * inner)
np.testing.assert_allclose(old.copy_to_host(), plate, rtol=1e-12)
keep("stencil", old.copy_to_host())

x = random.integers(0, 100, 256).astype(np.int32)
out = np.zeros_like(x)
scan[2, 128](x, out)
np.testing.assert_array_equal(out, x.reshape(-1, 32).cumsum(axis=1).ravel())
keep("shuffle", out)

x = random.random(500) * 5 + 0.1
out = np.zeros((8, 500))
functions[2, 256](x, out)
reference = [np.sin(x), np.exp(x), np.log(x), np.tanh(x), np.vectorize(math.erf)(x), x**1.7]
reference += [np.vectorize(math.gamma)(x), np.arctan2(x, 2)]
np.testing.assert_allclose(out, reference, rtol=1e-13, atol=1e-14)
keep("functions", out)

table = np.zeros((20, 250), np.int64)  # of the last warps some threads end at once, or all
rows[9, 32](table)
wanted = np.zeros_like(table)
for y in range(1, 20):
    wanted[y] = wanted[y - 1, ::-1] + np.arange(250)
np.testing.assert_array_equal(table, wanted)
keep("grid", table)

print(json.dumps(found))
