#!/bin/sh
# Compares Weft with llama.cpp on this machine and prints Markdown tables; nothing else should run meanwhile. Needs node 20, npm
# and about 5 GB in WEFT_PEER_DIR (default: build/peer-models) and 12 GB of memory.
#
#   bench/peer/run.sh [--rows REGEX] [--rounds N] [--threads N] [--out RESULTS.json]       options of compare.mjs
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/bench/peer
build=${WEFT_BUILD_DIR:-$root/build/release}
models=${WEFT_PEER_DIR:-$root/build/peer-models}

[ -d "$here/node_modules/node-llama-cpp" ] || (cd "$here" && npm install --no-audit --no-fund) >&2
[ -f "$build/CMakeCache.txt" ] || cmake -S "$root" --preset release -B "$build" >&2
cmake --build "$build" --target weft weft_step_bench weft_dcp_step weft_read_bandwidth weft_reference_logits >&2
mkdir -p "$models"
for model in qwen3-tiny mla-tiny mla-mid qwen3-0.6b; do
  [ -f "$models/$model/config.json" ] || node "$here/write_model.mjs" "$model" "$models"
done

echo "## The same model"
echo
node "$here/prove.mjs" "$build" "$models"
echo
echo "## Speed"
echo
node "$here/compare.mjs" "$build" "$models" "$@"
echo
echo "## What weaving costs a step"
echo
"$build/weft_dcp_step"
