"""CUDA C++ compiled by NVRTC and launched through cuda.bindings, as a program does that knows only the driver API."""

import hashlib
import json
from pathlib import Path

import numpy as np
from cuda.bindings import driver, nvrtc

found = {}


def keep(name, array):
    found[name] = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def ask(answer):
    assert answer[0].value == 0, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]


def compiled(source, arch):
    program = ask(nvrtc.nvrtcCreateProgram(source, b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture=compute_{arch}".encode(), b"--std=c++17"]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = b" " * ask(nvrtc.nvrtcGetProgramLogSize(program))
    ask(nvrtc.nvrtcGetProgramLog(program, log))
    assert result.value == 0, log.decode()
    text = b" " * ask(nvrtc.nvrtcGetPTXSize(program))
    ask(nvrtc.nvrtcGetPTX(program, text))
    return text


def to_card(array):
    address = ask(driver.cuMemAlloc(array.nbytes))
    ask(driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
    return address


def from_card(address, shape):
    array = np.empty(shape, np.float32)
    ask(driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
    return array


ask(driver.cuInit(0))
device = ask(driver.cuDeviceGet(0))
context = ask(driver.cuDevicePrimaryCtxRetain(device))
ask(driver.cuCtxSetCurrent(context))
major = ask(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
minor = ask(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
text = compiled(Path(__file__).with_suffix(".cu").read_bytes(), 10 * major + minor)
module = ask(driver.cuModuleLoadData(text))
stream = ask(driver.cuStreamCreate(0))


def launch(name, grid, block, *arguments):
    function = ask(driver.cuModuleGetFunction(module, name.encode()))
    values = [np.array([int(a)], np.uint64) if isinstance(a, driver.CUdeviceptr) else np.array([a]) for a in arguments]
    places = np.array([v.ctypes.data for v in values], np.uint64)
    ask(driver.cuLaunchKernel(function, *grid, *block, 0, stream, places.ctypes.data, 0))
    ask(driver.cuStreamSynchronize(stream))


random = np.random.default_rng(3)
m, n, k = 100, 90, 70
a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
c = to_card(np.zeros((m, n), np.float32))
launch("sgemm", (6, 7, 1), (16, 16, 1), to_card(a), to_card(b), c, np.int32(m), np.int32(n), np.int32(k))
np.testing.assert_allclose(from_card(c, (m, n)), a @ b, atol=1e-4)
keep("sgemm", from_card(c, (m, n)))

x = random.integers(-9, 9, 100_003).astype(np.float32)  # whole numbers: the order of the sum does not matter
out = to_card(np.zeros(1, np.float32))
launch("reduce", (30, 1, 1), (256, 1, 1), to_card(x), out, np.int32(x.size))
assert from_card(out, 1)[0] == x.sum()
keep("reduce", from_card(out, 1))

rows, columns = 50, 333
x = random.standard_normal((rows, columns), np.float32)
y = to_card(np.zeros_like(x))
launch("softmax", (rows, 1, 1), (128, 1, 1), to_card(x), y, np.int32(columns))
power = np.exp(x - x.max(axis=1, keepdims=True))
np.testing.assert_allclose(from_card(y, x.shape), power / power.sum(axis=1, keepdims=True), rtol=2e-5)
keep("softmax", from_card(y, x.shape))

gain, bias = random.standard_normal(columns, np.float32), random.standard_normal(columns, np.float32)
arguments = (to_card(x), to_card(gain), to_card(bias), y, np.int32(columns), np.float32(1e-5))
launch("layer_norm", (rows, 1, 1), (128, 1, 1), *arguments)
norm = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
np.testing.assert_allclose(from_card(y, x.shape), norm * gain + bias, rtol=1e-4, atol=1e-5)
keep("layer_norm", from_card(y, x.shape))

print(json.dumps(found))
