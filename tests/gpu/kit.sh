#!/usr/bin/env bash
# What tests/gpu/run.sh needs on a GPU machine without a network, made on a machine with one:
#
#   tests/gpu/kit.sh [DIRECTORY]                        # here; default: build/gpu-kit
#   GPU_KIT=DIRECTORY tests/gpu/run.sh                  # there, in a copy of the source tree
#
# The kit holds the product's wheel and the wheels of its dependencies and of the test runner, for CPython GPU_KIT_PYTHON (3.12).
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:-build/gpu-kit}
version=${GPU_KIT_PYTHON:-3.12}
[[ -x .venv/bin/python ]] || make --no-print-directory setup
rm -rf "$kit"
mkdir -p "$kit/wheels"
.venv/bin/python - "$kit/wheels" <<'PYTHON'
import sys
from pathlib import Path

from tools.wheel import build

print(build(Path(sys.argv[1])))
PYTHON
python3 -m venv "$kit/pip"
"$kit/pip/bin/pip" download -q --disable-pip-version-check --only-binary=:all: --python-version "$version" \
    --implementation cp --platform manylinux_2_34_x86_64 --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -d "$kit/wheels" "$(echo "$kit"/wheels/calabash-*.whl)[remote]" pytest pytest-timeout pytest-xdist hypothesis
rm -rf "$kit/pip"
du -sh "$kit"
