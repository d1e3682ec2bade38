#!/usr/bin/env bash
# Compiles every .cu file for architectures of which there is no GPU to run them on; links and runs nothing.
#
#   tools/cuda/compile_check.sh [ARCHITECTURE ...]     (default: 80 89)
#
# ptxas does not optimise here: it checks that an architecture has the instructions, not how fast they are.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p build
(($#)) || set -- 80 89
for architecture in "$@"; do
  folder=build/cuda-check-$architecture
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBRAID_CUDA=ON -DBRAID_TESTS=OFF \
    -DCMAKE_CUDA_ARCHITECTURES="$architecture" -DCMAKE_CUDA_FLAGS='-Xptxas -O0' > "$folder.log" 2>&1 || {
    cat "$folder.log" >&2
    exit 1
  }
  mapfile -t objects < <(ninja -C "$folder" -t targets all | sed -n 's/^\(src\/.*\.cu\.o\): .*/\1/p')
  ((${#objects[@]})) || {
    echo "no .cu files to compile in $folder" >&2
    exit 1
  }
  ninja -C "$folder" "${objects[@]}" > "$folder.log" 2>&1 || {
    grep -E 'error|FAILED' "$folder.log" >&2
    exit 1
  }
  echo "sm_$architecture: ${#objects[@]} files compile"
done
