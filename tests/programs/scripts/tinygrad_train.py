"""tinygrad trains a small network on its CUDA backend; the loss falls."""

import json

import numpy as np
from tinygrad import Device, Tensor, nn
from tinygrad.helpers import Context

assert Device.DEFAULT.startswith("CUDA"), Device.DEFAULT
random = np.random.default_rng(5)
data = random.standard_normal((32, 8)).astype(np.float32)
x = Tensor(data)
y = Tensor(np.sin(data @ random.standard_normal((8, 1)).astype(np.float32)))


class Network:
    def __init__(self):
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 1)

    def __call__(self, x):
        return self.second(self.first(x).relu())


Tensor.manual_seed(1)
network = Network()
optimizer = nn.optim.Adam(nn.state.get_parameters(network), lr=0.02)
losses = []
with Context(TRAINING=1):
    for _ in range(6):
        optimizer.zero_grad()
        loss = ((network(x) - y) ** 2).mean().backward()
        optimizer.step()
        losses.append(loss.item())
assert losses[-1] < 0.7 * losses[0], losses
print(json.dumps({"losses": losses}))
