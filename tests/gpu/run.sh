#!/usr/bin/env bash
# The checks of this repository on a machine with a real NVIDIA card, unattended, in less than ten minutes.
#
#   tests/gpu/run.sh
#
# Builds, then checks memory caps, the tenant's view, compute shares and remote cards with the C programs of bench/programs
# (their PTX is compiled by the driver), and with PyTorch or CuPy where Python finds one. Results go to $OUT (default: build/gpu) as
# JSON; a table comes last. Without a card it says so and ends with 0. With a card it ends with 1 when a check failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=${OUT:-$PWD/build/gpu}
mkdir -p "$OUT"

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "gpu checks: no NVIDIA card on this machine; nothing was checked" | tee "$OUT/summary.txt"
    exit 0
fi

log() { printf '\n== %s\n' "$*"; }
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
: >"$OUT/results.tsv"

log "card"
nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_mode,mig.mode.current --format=csv | tee "$OUT/card.csv"

log "build"
within 240 build make --no-print-directory setup || { echo "the build failed; see $OUT/build.log"; exit 1; }
uv=$(command -v uv || echo "$PWD/.tools/bin/uv")
python=("$uv" run --no-sync python)
export BENCH_CARD=real PYTHONPATH=$PWD

log "memory cap and the tenant's view"
within 90 limits "${python[@]}" tests/gpu/limits.py --json "$OUT/limits.json"

log "cost of the shim"
within 60 shim "${python[@]}" -m bench.shim --quick --json "$OUT/shim.json"

log "compute shares"
within 240 shares "${python[@]}" -m bench.shares --quick --json "$OUT/shares.json"

log "remote cards, over loopback"
torch=()
for candidate in "${FRAMEWORK_PYTHON:-}" python3 /usr/bin/python3; do
    [[ -n $candidate ]] && command -v "$candidate" >/dev/null || continue
    "$candidate" -c "import torch" 2>/dev/null && torch=(--torch "$candidate") && break
done
within 180 remote "${python[@]}" tests/gpu/remote.py "${torch[@]}" --json "$OUT/remote.json"

# The frameworks live in the system's or the caller's Python, not in ours; it only needs to find them.
log "frameworks"
for name in torch cupy; do
    for candidate in "${FRAMEWORK_PYTHON:-}" python3 /usr/bin/python3; do
        [[ -n $candidate ]] && command -v "$candidate" >/dev/null || continue
        if "$candidate" -c "import $name" 2>/dev/null; then
            within 120 "framework-$name" \
                "${python[@]}" tests/gpu/limits.py --framework "$name" --python "$candidate" --json "$OUT/$name.json"
            continue 2
        fi
    done
    echo "$name is not installed: left out (FRAMEWORK_PYTHON may name the Python that has it)"
done

log "summary"
"${python[@]}" tests/gpu/limits.py --summary "$OUT" | tee "$OUT/summary.txt"
exit "${PIPESTATUS[0]}"
