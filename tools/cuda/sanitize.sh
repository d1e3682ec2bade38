#!/usr/bin/env bash
# Runs the op tests of a CUDA device under compute-sanitizer: memcheck (addresses, API errors), racecheck (shared
# memory) and synccheck (barriers). Needs a GPU and a build with BRAID_CUDA of ops_test and logits_test.
#
#   tools/cuda/sanitize.sh [-q] [-p] [-b BUILD_DIR] [-j PROCESSES] [-t SECONDS] [-f GTEST_FILTER] [TOOL ...]
#
# The tests take their small sizes (BRAID_TEST_SMALL: the same kernels on fewer cases), are shared among so many
# processes (4: they take turns on the GPU, and share only the host's part), and each tool gets so many seconds (900).
# -q: one test for each kernel is enough. -p: the tools run at the same time, each with so many processes.
# COMPUTE_SANITIZER: another program than that of the PATH; COMPUTE_SANITIZER_SYNCCHECK and so on: for one tool. Prints
# what is left out and why, one line a tool and, below it, what it found, what failed (with the first lines of the first
# assertion) and what did not finish; reports are in BUILD_DIR/sanitize. Exit code 1 if there was any of these, 2 if
# nothing could be run.
set -uo pipefail

# Tests of a device that are not run: name|why.
left_out=(
  '*TokensComeAsOften*|4000 draws for a statistic; EqualsDrawingOnTheHostToTheBit launches the same kernel'
)

# With -q: what only asks more of kernels that other tests launch, too.
repeats=(BatchMates MatesOfWide OrThreads DependOnThreads ChunksThreads SplittingKeys AnySplit SplitsGive WindowEnds
  Rings NoRows NothingToDo NoSequences EveryLength ChunksReplay AutoTakes NotFiniteInputs StayFloat32 WholeRange OfNan
  MatesChange NumberOfMates VeryMany EndsOfTheRange Ties LargeLogits LargeScores ErrorIsWithin RefusesIds RejectsMisuse OtherSteps)

build=build/cuda jobs=4 limit=900 chosen='' quick='' together=''
usage() { sed -n '2,14s/^# \{0,1\}//p' "$0"; exit "$1"; }
while getopts 'qpb:j:t:f:h' option; do
  case $option in
    q) quick=yes ;;
    p) together=yes ;;
    b) build=$OPTARG ;;
    j) jobs=$OPTARG ;;
    t) limit=$OPTARG ;;
    f) chosen=$OPTARG ;;
    h) usage 0 ;;
    *) usage 2 >&2 ;;
  esac
done
shift $((OPTIND - 1))
tools=("$@")
((${#tools[@]})) || tools=(memcheck racecheck synccheck)
sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)}
# The program for a tool.
program_of() {
  local own=COMPUTE_SANITIZER_${1^^}
  echo "${!own:-$sanitizer}"
}
for tool in "${tools[@]}"; do
  [[ -x $(program_of "$tool") ]] || {
    echo "no compute-sanitizer for $tool: '$(program_of "$tool")'; it comes with the CUDA toolkit" >&2
    exit 2
  }
done
programs=("$build/tests/logits_test" "$build/tests/ops_test")
for program in "${programs[@]}"; do
  [[ -x $program ]] || {
    echo "$program: not there; build the targets ops_test and logits_test with -DBRAID_CUDA=ON first" >&2
    exit 2
  }
done
export BRAID_TEST_SMALL=1

[[ -n $quick ]] && for name in "${repeats[@]}"; do
  left_out+=("*$name*|launches kernels that other tests launch, too (-q)")
done
filter='Devices/*'
[[ -n $chosen ]] && filter=$chosen
for entry in "${left_out[@]}"; do
  [[ $filter == *-* ]] && filter+=":${entry%%|*}" || filter+="-${entry%%|*}"
done

# Names of the tests that a filter chooses, of all programs.
list() {
  for program in "${programs[@]}"; do
    "$program" --gtest_filter="$1" --gtest_list_tests | awk '/^[^ ]/ {suite = $1} /^ / {print suite $1}'
  done | sort
}
all=$(list '*')
devices=$(list 'Devices/*')
tests=$(list "$filter")
count() { grep -c . <<< "$1"; }
echo "$(count "$tests") tests in small sizes, $jobs processes, at most $limit s a tool"
for entry in "${left_out[@]}"; do
  echo "left out: ${entry%%|*}: ${entry#*|}"
done
echo "left out: $(($(count "$all") - $(count "$devices"))) tests of the CPU: they launch no kernels"
[[ -n $chosen ]] && echo "left out: of $(count "$devices") tests of devices, those that $chosen does not name"
[[ -n $tests ]] || { echo "the filter names no test" >&2; exit 2; }

# One process, until its tool's time is over: tool, program, shard, shards.
run_shard() {
  local log=$reports/$1.${2##*/}.$3.log left=$((limit - SECONDS + begin)) code
  ((left > 0)) || return
  GTEST_SHARD_INDEX=$3 GTEST_TOTAL_SHARDS=$4 timeout -k 5 "$left" \
    "$(program_of "$1")" --tool "$1" --error-exitcode 9 --print-limit 100 --show-backtrace no "$2" --gtest_filter="$filter" > "$log" 2>&1 &
  echo $! >> "$reports/$1.processes"
  wait $!
  code=$?
  ((code == 0)) || echo "$code ${2##*/} $3" >> "$reports/$1.codes"
}
pids=()
# Each has its process group, which `timeout` ends with it.
stop() {
  kill "${pids[@]}" 2> /dev/null
  cat "$reports"/*.processes 2> /dev/null | xargs -r kill 2> /dev/null
  exit 1
}
trap stop TERM INT

reports=$build/sanitize
mkdir -p "$reports"
rm -f "$reports"/*.processes
# One tool; 1 if it found anything, or did not do all.
run_tool() {
  local tool=$1 begin=$SECONDS running=0
  rm -f "$reports/$tool".*
  # More shards than processes, so that a slow test holds up few others; the slowest program first.
  for program in "${programs[@]}"; do
    shards=$("$program" --gtest_filter="$filter" --gtest_list_tests | grep -c '^ ')
    ((shards <= 4 * jobs)) || shards=$((4 * jobs))
    for ((i = 0; i < shards; i++)); do
      ((running < jobs)) || { wait -n; running=$((running - 1)); }
      run_shard "$tool" "$program" "$i" "$shards" &
      running=$((running + 1))
    done
  done
  wait
  rm -f "$reports/$tool.processes"

  logs=("$reports/$tool".*.log)
  done_tests=$(sed -nE 's/^\[( +OK|  SKIPPED|  FAILED ) +\] ([^ ,]+)(, where .*| \(.*)?$/\2/p' "${logs[@]}" | sort -u)
  skipped=$(sed -nE 's/^\[  SKIPPED \] ([^ ,]+)( \(.*)?$/\1/p' "${logs[@]}" | sort -u)
  bad_tests=$(sed -nE 's/^\[  FAILED  \] ([^ ,]+)(, where .*| \(.*)?$/\1/p' "${logs[@]}" | sort -u)
  unfinished=$(comm -23 <(echo "$tests") <(echo "$done_tests"))
  findings=$(cat "${logs[@]}" | awk '/(ERROR|RACECHECK) SUMMARY:/ {sum += $4} END {print sum + 0}')
  odd=$(cat "$reports/$tool.codes" 2> /dev/null | awk '$1 != 9 && $1 != 1 && $1 != 124 && $1 != 137')
  # The sanitizer's own code without a finding that was understood.
  ((findings > 0)) || odd+=$(awk '$1 == 9' "$reports/$tool.codes" 2> /dev/null)
  seconds=$((SECONDS - begin))
  ran=$(($(count "$done_tests") - $(count "$skipped")))
  if ((findings == 0 && ran > 0)) && [[ -z $bad_tests && -z $unfinished && -z $odd ]]; then
    echo "$tool: clean, $ran tests in $seconds s"
    [[ -n $skipped ]] && sed 's/^/  skips itself on this device: /' <<< "$skipped"
    return 0
  fi
  echo "$tool: $findings findings, $(count "$bad_tests") tests failed, $(count "$unfinished") of" \
    "$(count "$tests") did not finish, $(count "$skipped") skipped themselves, in $seconds s; see $reports/$tool.*.log"
  # Each with where its first assertion is and up to 8 lines more.
  [[ -n $bad_tests ]] && awk '
    /^\[ RUN / {text = ""; left = 9}
    /^=========/ {next}
    /: Failure$/ || text != "" && !/^\[/ {if (left-- > 0) text = text "    " substr($0, 1, 240) "\n"}
    /^\[  FAILED  \] .* ms\)$/ {sub(/,$/, "", $4); printf "  failed: %s\n%s", $4, text; text = ""}
  ' "${logs[@]}"
  if [[ -n $unfinished ]]; then
    # The test that a process was at when its time was over, and those it did not come to.
    at=$(for log in "${logs[@]}"; do grep -a '^\[ RUN ' "$log" | tail -1; done | sed 's/.*\] //' | sort -u)
    slow=$(comm -12 <(echo "$unfinished") <(echo "$at"))
    never=$(comm -23 <(echo "$unfinished") <(echo "$at"))
    [[ -n $slow ]] && sed 's/^/  did not finish: /' <<< "$slow"
    [[ -n $never ]] && sed 's/^/  did not begin: /' <<< "$never"
  fi
  [[ -n $odd ]] && sed 's/^/  ended with code: /' <<< "$odd"
  # What was found, and in which kernels.
  sed -nE 's/^========= (.*)$/\1/p' "${logs[@]}" | awk '
    /Race reported/ {gsub(/\+0x[0-9a-f]+/, ""); print "  " $0; next}
    /^    at / {sub(/\+0x[0-9a-f]+.*/, ""); print "  " message ":" $0; next}
    /^[A-Z]/ {message = $0}' | cut -c1-240 | sort | uniq -c | sort -rn | head -20
  return 1
}
failed=0
finish() {
  wait "$1" || failed=1
  cat "$reports/summary.$2"
}
for tool in "${tools[@]}"; do
  run_tool "$tool" > "$reports/summary.$tool" &
  pids+=($!)
  [[ -n $together ]] || finish $! "$tool"
done
[[ -z $together ]] || for i in "${!tools[@]}"; do finish "${pids[i]}" "${tools[i]}"; done
exit $failed
