#!/usr/bin/env python3
"""Measures the workloads of docs/performance.md on one CUDA device and prints them beside their
floors, peers and goals.

    tools/cuda/measure_table.py --braid build/cuda/braid --shapes SHAPES --output table.json

SHAPES holds folders with the config.json of gemma4-26b-a4b, gemma4-12b and qwen3-next-80b-a3b;
weights are random. Floors are bytes at 4.5 TB/s and products at 779 TFLOP/s (one H200); peers are
the best of llama.cpp and transformers measured on the same kind of card, not in this run; those of
--peers (from measure_peer.py) stand beside them as "here", and the faster of both is what braid is
compared with. Results are written after each row, so an interrupted run leaves what it has. --rows
picks rows by a part of their name; --deterministic adds the price of that mode. Needs Python's
standard library."""

import argparse
import json
import os
import subprocess
import sys
import time

DECODE = ["--prompt", "0", "--generate", "32", "--depth", "256"]
PREFILL = ["--generate", "0", "--prompt", "256"]

# As W8A8 is meant: inputs of many tokens, keys and values in int8.
INT8 = ["--compute", "int8", "--kv", "int8"]

JOB = ["--prompt", "0", "--generate", "0", "--batch-tokens", "1280", "--memory-budget", "10GiB"]

# Name, shape, weights, arguments, {batch: (floor, best peer, goal)} in ms; 0: none.
ROWS = [
    ("26B-A4B bf16 decode", "gemma4-26b-a4b", "bf16", DECODE,
     {1: (1.7, 5.8, 2.5), 8: (5.3, 11.6, 6.5)}),
    ("26B-A4B bf16 prefill 256 each", "gemma4-26b-a4b", "bf16",
     PREFILL + ["--batch-tokens", "2048"], {8: (16.4, 53.4, 30)}),
    ("12B bf16 decode", "gemma4-12b", "bf16", DECODE,
     {1: (5.3, 9.0, 6.2), 8: (5.5, 10.4, 6.5), 10: (5.5, 11.1, 0)}),
    ("12B bf16 prefill 256 each", "gemma4-12b", "bf16", PREFILL + ["--batch-tokens", "2560"],
     {1: (7.2, 13.5, 0), 10: (71.6, 99, 0)}),
    ("12B W4A16 decode", "gemma4-12b", "w4a16", DECODE,
     {1: (1.72, 5.7, 2.4), 5: (1.80, 9.0, 0), 10: (1.90, 13.0, 3.0)}),
    ("12B W4A16 prefill 256 each", "gemma4-12b", "w4a16", PREFILL + ["--batch-tokens", "2560"],
     {10: (71.6, 353, 0)}),
    ("12B W4A16 10 x (256 in, 32 out)", "gemma4-12b", "w4a16", JOB + ["--jobs", "10x256+32"],
     {10: (130, 814, 250)}),
    ("80B-A3B W8A8 decode", "qwen3-next-80b-a3b", "w8a8", DECODE + INT8,
     {1: (0.91, 5.5, 2.2), 8: (3.3, 13.3, 5), 32: (9.7, 48.9, 13)}),
    ("80B-A3B W8A8 prefill 256 each", "qwen3-next-80b-a3b", "w8a8",
     PREFILL + ["--batch-tokens", "2048"] + INT8, {8: (17.7, 384, 45)}),
]


def run_row(arguments, name, shape, weights, options, batches, extra):
    command = [arguments.braid, "bench", os.path.join(arguments.shapes, shape), "--device", "cuda",
               "--load-format", "dummy", "--weights", weights, "--repetitions",
               str(arguments.repetitions), "--json", *options, *extra]
    if "--jobs" not in options:
        command += ["--batch" if options[:len(DECODE)] == DECODE else "--prompt-batch",
                    ",".join(map(str, batches))]
    started = time.time()
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        return [], f"{' '.join(command)} ended with code {result.returncode}: {result.stderr[-500:]}"
    bench = json.loads(result.stdout)
    rows = []
    for row in bench["rows"]:
        floor, peer, goal = batches.get(row["batch"], (0, 0, 0))
        steps = row["tokens"] / row["batch"] if row["phase"] == "decode" else 1
        rows.append({"name": name, "batch": row["batch"], "phase": row["phase"],
                     "milliseconds": 1e3 * row["median_seconds"] / steps,
                     "spread": row["spread"], "share": row["share"], "bound": row["bound"],
                     "floor": floor, "best_peer": peer, "goal": goal, "options": extra,
                     "read_bytes_per_second":
                         bench["ceilings"][0]["read_bytes_per_second"] if bench.get("ceilings")
                         else None})
    print(f"{name}: {time.time() - started:.0f} s with loading", file=sys.stderr)
    return rows, None


def show(rows):
    def number(value):
        return f"{value:8.2f}" if value else "       -"
    print(f"{'workload':34} {'batch':>5} {'ms':>8} {'floor':>8} {'peer':>8} {'here':>8} {'goal':>8}"
          "  peer/ms")
    for row in rows:
        peer = min(filter(None, (row["peer_here"], row["best_peer"])), default=0)
        ratio = peer / row["milliseconds"]
        name = row["name"] + (" " + " ".join(row["options"]) if row["options"] else "")
        print(f"{name:34} {row['batch']:5} {row['milliseconds']:8.2f} {number(row['floor'])} "
              f"{number(row['best_peer'])} {number(row['peer_here'])} {number(row['goal'])}"
              f"  {ratio:7.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--braid", required=True)
    parser.add_argument("--shapes", required=True)
    parser.add_argument("--output", default="table.json")
    parser.add_argument("--rows", default="", help="only rows with one of these in their name, "
                        "separated by commas")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--peers", help="a file of measure_peer.py")
    arguments = parser.parse_args()
    peers = {}
    if arguments.peers:
        with open(arguments.peers) as file:
            peers = json.load(file)["peers"]
    wanted = [part for part in arguments.rows.split(",") if part]
    rows, failures = [], []
    for name, shape, weights, options, batches in ROWS:
        if wanted and not any(part in name for part in wanted):
            continue
        for extra in [[]] + ([["--deterministic"]] if arguments.deterministic else []):
            some, failure = run_row(arguments, name, shape, weights, options, batches, extra)
            for row in some:
                row["peer_here"] = peers.get(name, {}).get(str(row["batch"]))
            rows += some
            if failure:
                failures.append(failure)
                print(failure, file=sys.stderr)
            with open(arguments.output + ".part", "w") as file:
                json.dump({"rows": rows, "failures": failures}, file, indent=1)
            os.replace(arguments.output + ".part", arguments.output)
    show(rows)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
