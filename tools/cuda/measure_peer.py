#!/usr/bin/env python3
"""Measures llama.cpp on the workloads of measure_table.py, for its option --peers: both on one
machine in one run.

    tools/cuda/measure_peer.py --llama-batched-bench PATH --folder /dev/shm --output peers.json
    tools/cuda/measure_table.py ... --peers peers.json

Files of random weights in the models' shapes are written to the folder one after the other (7, 24,
50 and 85 GB) and removed again. Formats are the peer's nearest: Q4_0 for W4A16, Q8_0 for W8A8.
Every number of sequences runs three times; the fastest of the last two counts. Results are written
after each model. Needs Python's standard library."""

import argparse
import json
import os
import subprocess
import sys
import time

WRITER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers", "write_gguf.py")
PROMPT, TOKENS, RUNS = 256, 32, 3

# Model, format, numbers of sequences, rows of measure_table.py: of a step, of prompts, of both.
MODELS = [
    ("gemma4-12b", "q4_0", (1, 5, 10), "12B W4A16 decode", "12B W4A16 prefill 256 each",
     "12B W4A16 10 x (256 in, 32 out)"),
    ("gemma4-12b", "bf16", (1, 8, 10), "12B bf16 decode", "12B bf16 prefill 256 each", None),
    ("gemma4-26b-a4b", "bf16", (1, 8), "26B-A4B bf16 decode", "26B-A4B bf16 prefill 256 each", None),
    ("qwen3-next-80b-a3b", "q8_0", (1, 8, 32), "80B-A3B W8A8 decode",
     "80B-A3B W8A8 prefill 256 each", None),
]


def measure(program, path, batches):
    """Of each number of sequences: milliseconds of prompts, of a step, of the whole."""
    command = [program, "-m", path, "-ngl", "999", "-fa", "on", "-b", "2048", "-ub", "2048", "-c",
               str(max(batches) * (PROMPT + TOKENS)), "-npp", str(PROMPT), "-ntg", str(TOKENS),
               "-npl", ",".join(str(b) for b in batches for _ in range(RUNS)),
               "--output-format", "jsonl"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with code {result.returncode}: "
                           f"{result.stderr[-500:]}")
    runs = {}
    for line in result.stdout.splitlines():
        if line.startswith("{"):
            run = json.loads(line)
            runs.setdefault(run["pl"], []).append(run)
    if any(len(runs.get(b, [])) != RUNS for b in batches):
        raise RuntimeError(f"{' '.join(command)}: runs are missing: {result.stdout[-500:]}")

    def fastest(batch, field):
        return 1e3 * min(run[field] for run in runs[batch][1:])
    return {b: (fastest(b, "t_pp"), fastest(b, "t_tg") / TOKENS, fastest(b, "t")) for b in batches}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-batched-bench", required=True)
    parser.add_argument("--folder", required=True, help="for model files, one at a time")
    parser.add_argument("--models", default="",
                        help="NAME:FORMAT,... (default: all, from small to large)")
    parser.add_argument("--output", default="peers.json")
    arguments = parser.parse_args()
    known = [f"{model}:{kind}" for model, kind, *_ in MODELS]
    wanted = arguments.models.split(",") if arguments.models else known
    if unknown := set(wanted) - set(known):
        parser.error(f"--models: {', '.join(unknown)}: expected some of {', '.join(known)}")
    peers, failures = {}, []
    for model, kind, batches, decode, prefill, job in MODELS:
        if f"{model}:{kind}" not in wanted:
            continue
        started = time.monotonic()
        path = os.path.join(arguments.folder, f"{model}-{kind}.gguf")
        try:
            subprocess.run([sys.executable, WRITER, model, kind, path], check=True)
            written = time.monotonic()
            for batch, (prompts, step, whole) in measure(arguments.llama_batched_bench, path,
                                                         batches).items():
                for row, milliseconds in ((decode, step), (prefill, prompts), (job, whole)):
                    if row is not None:
                        peers.setdefault(row, {})[str(batch)] = milliseconds
                print(f"{model} {kind} x {batch}: prompts {prompts:.1f} ms, a step {step:.2f} ms",
                      file=sys.stderr)
            print(f"{model} {kind}: {written - started:.0f} s to write, "
                  f"{time.monotonic() - written:.0f} s to measure", file=sys.stderr)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            failures.append(str(error))
            print(error, file=sys.stderr)
        finally:
            for leftover in (path, path + ".partial"):
                if os.path.exists(leftover):
                    os.remove(leftover)
        with open(arguments.output + ".part", "w") as file:
            json.dump({"peers": peers, "failures": failures}, file, indent=1)
        os.replace(arguments.output + ".part", arguments.output)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
