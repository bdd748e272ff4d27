"""cuda.core: devices, memory, streams, events, compiling, linking, occupancy, graphs."""

import hashlib
import json

import numpy as np
from cuda.core import (
    Device,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    Linker,
    LinkerOptions,
    Program,
    ProgramOptions,
    launch,
)

found = {}


def keep(name, array):
    found[name] = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


CODE = """
template <class T> __global__ void scale(T *x, T by, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
extern "C" __global__ void plus(int *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}
"""
LIBRARY = 'extern "C" __device__ int twice(int x) { return 2 * x; }'
MAIN = """
extern "C" __device__ int twice(int);
extern "C" __global__ void doubled(int *x) { x[threadIdx.x] = twice(x[threadIdx.x]); }
"""

device = Device()
device.set_current()
stream = device.create_stream()
arch = "".join(map(str, device.compute_capability))
options = ProgramOptions(std="c++17", arch=f"compute_{arch}")
found["properties"] = [device.name, list(device.compute_capability), device.properties.multiprocessor_count]


def buffer_of(array):
    buffer = device.allocate(array.nbytes, stream=stream)
    host = pinned(array.nbytes)
    np.from_dlpack(host).view(array.dtype)[:] = array.ravel()
    buffer.copy_from(host, stream=stream)
    stream.sync()
    return buffer


def pinned(size):
    return LegacyPinnedMemoryResource().allocate(size)


def values_of(buffer, dtype):
    host = pinned(buffer.size)
    buffer.copy_to(host, stream=stream)
    stream.sync()
    return np.from_dlpack(host).view(dtype).copy()


names = ("scale<float>", "scale<double>")
module = Program(CODE, code_type="c++", options=options).compile("ptx", name_expressions=names)
for name, dtype in zip(names, (np.float32, np.float64), strict=True):
    x = np.arange(1000, dtype=dtype)
    held = buffer_of(x)
    launch(stream, LaunchConfig(grid=4, block=256), module.get_kernel(name), held, dtype(1.5), np.int32(1000))
    np.testing.assert_array_equal(values_of(held, dtype), x * dtype(1.5))
    keep(name, values_of(held, dtype))

kernel = module.get_kernel("plus")
x = np.arange(256, dtype=np.int32)
held = buffer_of(x)
begin = stream.record(options=EventOptions(timing_enabled=True))
for _ in range(10):
    launch(stream, LaunchConfig(grid=1, block=256), kernel, held, np.int32(256))
end = stream.record(options=EventOptions(timing_enabled=True))
end.sync()
assert 0 < end - begin < 60_000
np.testing.assert_array_equal(values_of(held, np.int32), x + 10)
found["launched"] = 10

assert kernel.num_arguments == 2
assert kernel.attributes.max_threads_per_block >= 256
assert kernel.occupancy.max_active_blocks_per_multiprocessor(256, 0) >= 1

parts = [
    Program(text, code_type="c++", options=ProgramOptions(arch=f"compute_{arch}", relocatable_device_code=True))
    for text in (MAIN, LIBRARY)
]
linked = Linker(*(p.compile("ptx") for p in parts), options=LinkerOptions(arch=f"sm_{arch}")).link("cubin")
held = buffer_of(np.arange(32, dtype=np.int32))
launch(stream, LaunchConfig(grid=1, block=32), linked.get_kernel("doubled"), held)
np.testing.assert_array_equal(values_of(held, np.int32), 2 * np.arange(32))
keep("linked", values_of(held, np.int32))

recorded = device.create_graph_builder().begin_building()
held = buffer_of(x)
for _ in range(3):
    launch(recorded, LaunchConfig(grid=1, block=256), kernel, held, np.int32(256))
graph = recorded.end_building().complete()
for _ in range(4):
    graph.launch(stream)
np.testing.assert_array_equal(values_of(held, np.int32), x + 12)
keep("graph", values_of(held, np.int32))

print(json.dumps(found))
