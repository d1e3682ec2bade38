#!/usr/bin/env bash
# Encodes the corpus, tries both models for a few steps end to end, then trains, checks and packs
# them within a wall-clock budget: train_all.sh CACHE OUT SECONDS
set -euo pipefail
cache=$1 out=$2 limit=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
models="gemma4 gemma4-dense"
mkdir -p "$out"

each() {  # each COMMAND...: runs it once a model, side by side; fails when one fails
    local pids=() status=0
    for model in $models; do "$@" "$model" & pids+=($!); done
    for pid in "${pids[@]}"; do wait "$pid" || status=1; done
    return $status
}
try_one() {
    "$python" "$here/train.py" "$1" --cache "$cache" --out "$cache/try/$1" --steps 20
    cp "$root/demo_models/$1"/tokenizer* "$cache/try/$1/"
    "$python" "$here/evaluate.py" "$cache/try/$1" --heldout "$root/demo_models/heldout/heldout.txt" --chunks 1 --quick
}
train_one() {
    "$python" "$here/train.py" "$1" --cache "$cache" --out "$cache/final/$1" --seconds "$seconds"
    cp "$root/demo_models/$1"/tokenizer* "$cache/final/$1/"
}
check_one() {
    "$python" "$here/evaluate.py" "$cache/final/$1" --heldout "$root/demo_models/heldout/heldout.txt" --cache "$cache"
}
pack() { tar -C "$cache/final" -cf - . | split -b 15M - "$out/models.tar."; }

"$python" "$here/encode_corpus.py" --cache "$cache" --tokenizer "$root/demo_models/gemma4/tokenizer.json"
echo "encoded after ${SECONDS}s"
each try_one
echo "tried after ${SECONDS}s"
seconds=$((limit - SECONDS - 100))
echo "training for ${seconds}s"
each train_one
pack
echo "trained after ${SECONDS}s"
each check_one
pack
echo "done after ${SECONDS}s"
