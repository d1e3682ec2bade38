#!/usr/bin/env bash
# Runs the op tests of a CUDA device under compute-sanitizer: memcheck (addresses, leaks of API
# errors), racecheck (shared memory) and synccheck. Needs a GPU and a build with BRAID_CUDA.
#
#   tools/cuda/sanitize.sh [BUILD_DIR] [GTEST_FILTER]
#
# Prints one line a tool; the reports are in BUILD_DIR/sanitize. Fails if any tool found something.
# The longest tests are left out by default: the sanitizer makes kernels tens of times slower.
set -euo pipefail

build=${1:-build/cuda}
filter=${2:-'Devices/*:-*LongSequences*:*SplittingKeys*:*EveryLength*:*AnySplit*:*WholeRange*'}
program=$build/tests/ops_test
reports=$build/sanitize

command -v compute-sanitizer > /dev/null || {
  echo "compute-sanitizer is not on the PATH; it comes with the CUDA toolkit" >&2
  exit 2
}
[[ -x $program ]] || {
  echo "$program: not there; build the target ops_test with -DBRAID_CUDA=ON first" >&2
  exit 2
}

mkdir -p "$reports"
failed=0
for tool in memcheck racecheck synccheck; do
  if compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$program" \
      --gtest_filter="$filter" > "$reports/$tool.log" 2>&1; then
    echo "$tool: clean, $(grep -c '\[       OK' "$reports/$tool.log") tests"
  else
    echo "$tool: failed; see $reports/$tool.log"
    grep -E '=========|FAILED' "$reports/$tool.log" | head -10 || true
    failed=1
  fi
done
exit $failed
