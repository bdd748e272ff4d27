#!/usr/bin/env bash
# The checks of this repository on a machine with a real NVIDIA card, unattended, in less than ten minutes.
#
#   tests/gpu/run.sh [STEP...]     steps: facts limits shim shares remote frameworks kernels demo; default: all
#
# Builds, then checks memory caps, the tenant's view, compute shares and remote cards with the C programs of bench/programs
# (their PTX is compiled by the driver), and with PyTorch or CuPy where Python finds one. `kernels` runs the tests of the
# simulated card's PTX interpreter on the real card: they compare with numpy, so both must give the same. Results go to $OUT
# (default: build/gpu) as JSON; a table comes last. Without a card it says so and ends with 0. With a card it ends with 1 when a
# check failed.
#
# GPU_KIT=DIRECTORY installs the wheels of tests/gpu/kit.sh instead of building, for a machine without a network.
# GPU_KIT_SITE=DIRECTORY names a site-packages directory whose packages stand in for wheels that the kit has not.
# BENCH_CARD=sim runs everything on a simulated card, to try the script itself.
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=${OUT:-$PWD/build/gpu}
mkdir -p "$OUT"
export BENCH_CARD=${BENCH_CARD:-real} PYTHONPATH=$PWD

if [[ $BENCH_CARD != sim ]] && ! { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }; then
    echo "gpu checks: no NVIDIA card on this machine; nothing was checked" | tee "$OUT/summary.txt"
    exit 0
fi

log() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }
within() { # within SECONDS NAME COMMAND...: run, keep the log, never hang
    local limit=$1 name=$2 rc
    shift 2
    timeout --kill-after=10 "$limit" "$@" >"$OUT/$name.log" 2>&1
    rc=$?
    tail -n 25 "$OUT/$name.log"
    [[ $rc == 124 || $rc == 137 ]] && echo "$name: stopped after $limit s"
    printf '%s\t%s\n' "$name" "$rc" >>"$OUT/results.tsv"
    return $rc
}
wanted() { [[ -z $steps || " $steps " == *" $1 "* ]]; }
steps=$*
: >"$OUT/results.tsv"

# A Python with the product from the kit's wheels; no network and no compiler are used.
install_kit() {
    local target=$OUT/python base=${GPU_KIT_PYTHON_PATH:-python3} site
    "$base" -m venv --without-pip "$target" || return 1
    "$base" -m pip --python "$target/bin/python" install -q --no-index --no-deps --no-compile --disable-pip-version-check \
        "$GPU_KIT"/wheels/*.whl || return 1
    site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    [[ -z ${GPU_KIT_SITE:-} ]] || echo "$GPU_KIT_SITE" >"$site/of-the-machine.pth"
    "$target/bin/python" -c 'import calabash, numpy, msgspec'
}

if [[ -n ${GPU_KIT:-} ]]; then
    log "install"
    if [[ ! -x $OUT/python/bin/calabash ]]; then
        install_kit >"$OUT/install.log" 2>&1 || { tail "$OUT/install.log"; echo "the installation failed"; exit 1; }
    fi
    python=("$OUT/python/bin/python") calabash=("$OUT/python/bin/calabash")
else
    log "build"
    [[ -x .venv/bin/calabash ]] || within 240 build make --no-print-directory setup || { echo "the build failed; see $OUT/build.log"; exit 1; }
    uv=$(command -v uv || echo "$PWD/.tools/bin/uv")
    python=("$uv" run --no-sync python) calabash=("$uv" run --no-sync calabash)
fi

if [[ $BENCH_CARD != sim ]]; then
    log "card"
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_mode,mig.mode.current --format=csv | tee "$OUT/card.csv"
fi

if wanted facts; then
    log "facts of the card and its driver"
    within 90 facts "${python[@]}" tests/gpu/facts.py --json "$OUT/facts.json"
fi

if wanted limits; then
    log "memory cap and the tenant's view"
    within 90 limits "${python[@]}" tests/gpu/limits.py --json "$OUT/limits.json"
fi

if wanted demo; then
    log "demo"
    within 90 demo "${calabash[@]}" demo
fi

if wanted shim; then
    log "cost of the shim"
    within 60 shim "${python[@]}" -m bench.shim --quick --json "$OUT/shim.json"
fi

if wanted shares; then
    log "compute shares"
    within 240 shares "${python[@]}" -m bench.shares --quick --json "$OUT/shares.json"
fi

python_with() { # python_with MODULE: the first Python that has it
    local candidate
    for candidate in "${FRAMEWORK_PYTHON:-}" python3 /usr/bin/python3; do
        [[ -n $candidate ]] && command -v "$candidate" >/dev/null || continue
        PYTHONPATH='' "$candidate" -c "import $1" 2>/dev/null && command -v "$candidate" && return
    done
    return 1
}

if wanted remote; then
    log "remote cards, over loopback"
    torch=()
    [[ $BENCH_CARD != sim ]] && found=$(python_with torch) && torch=(--torch "$found")
    within 180 remote "${python[@]}" tests/gpu/remote.py "${torch[@]}" --json "$OUT/remote.json"
fi

# The frameworks live in the system's or the caller's Python, not in ours; it only needs to find them.
if wanted frameworks && [[ $BENCH_CARD != sim ]]; then
    log "frameworks"
    for name in torch cupy; do
        if found=$(python_with "$name"); then
            within 120 "framework-$name" \
                "${python[@]}" tests/gpu/limits.py --framework "$name" --python "$found" --json "$OUT/$name.json"
        else
            echo "$name is not installed: left out (FRAMEWORK_PYTHON may name the Python that has it)"
        fi
    done
fi

if wanted kernels; then
    log "kernels of the simulated card's tests"
    within 150 kernels "${python[@]}" -m pytest -p no:cacheprovider tests/native/test_sim_ptx.py tests/native/test_sim_ptx_matrix.py
fi

log "summary"
"${python[@]}" tests/gpu/limits.py --summary "$OUT" | tee "$OUT/summary.txt"
exit "${PIPESTATUS[0]}"
