#!/usr/bin/env bash
# Runs the op tests of a CUDA device under compute-sanitizer: memcheck (addresses, API errors), racecheck (shared
# memory) and synccheck (barriers). Needs a GPU and a build with BRAID_CUDA of ops_test and logits_test.
#
#   tools/cuda/sanitize.sh [-b BUILD_DIR] [-j PROCESSES] [-t SECONDS] [-f GTEST_FILTER] [TOOL ...]
#
# The tests take their small sizes (BRAID_TEST_SMALL: the same kernels on fewer cases), are shared among so many
# processes (one a processor), and each tool gets so many seconds (900). Prints what is left out and why, one line a
# tool and, below it, what it found, what failed and what did not finish; reports are in BUILD_DIR/sanitize. Exit code
# 1 if there was any of these, 2 if nothing could be run.
set -uo pipefail

# Tests of a device that are not run: name|why.
left_out=(
  '*TokensComeAsOften*|4000 draws for a statistic; EqualsDrawingOnTheHostToTheBit launches the same kernel'
)

build=build/cuda jobs=$(nproc) limit=900 chosen=''
usage() { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit "$1"; }
while getopts 'b:j:t:f:h' option; do
  case $option in
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
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null) || {
  echo "compute-sanitizer is not on the PATH; it comes with the CUDA toolkit" >&2
  exit 2
}
programs=("$build/tests/ops_test" "$build/tests/logits_test")
for program in "${programs[@]}"; do
  [[ -x $program ]] || {
    echo "$program: not there; build the targets ops_test and logits_test with -DBRAID_CUDA=ON first" >&2
    exit 2
  }
done
export BRAID_TEST_SMALL=1

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

# One process: tool, program, shard, shards.
run_shard() {
  local log=$reports/$1.${2##*/}.$3.log code
  GTEST_SHARD_INDEX=$3 GTEST_TOTAL_SHARDS=$4 timeout -k 10 "$limit" \
    "$sanitizer" --tool "$1" --error-exitcode 9 --print-limit 20 "$2" --gtest_filter="$filter" > "$log" 2>&1
  code=$?
  ((code == 0)) || echo "$code ${2##*/} $3" >> "$reports/$1.codes"
}

reports=$build/sanitize
failed=0
for tool in "${tools[@]}"; do
  mkdir -p "$reports"
  rm -f "$reports/$tool".*
  begin=$SECONDS
  # The draws of tokens are one long test and some short ones; all others share the rest.
  few=$((jobs / 6 > 1 ? jobs / 6 : 1))
  for ((i = 0; i < few; i++)); do run_shard "$tool" "${programs[1]}" "$i" "$few" & done
  many=$((jobs > few ? jobs - few : 1))
  for ((i = 0; i < many; i++)); do run_shard "$tool" "${programs[0]}" "$i" "$many" & done
  wait

  logs=("$reports/$tool".*.log)
  done_tests=$(sed -nE 's/^\[( +OK|  SKIPPED|  FAILED ) +\] ([^ ,]+)( \(.*)?$/\2/p' "${logs[@]}" | sort -u)
  skipped=$(sed -nE 's/^\[  SKIPPED \] ([^ ,]+)( \(.*)?$/\1/p' "${logs[@]}" | sort -u)
  bad_tests=$(sed -nE 's/^\[  FAILED  \] ([^ ,]+)( \(.*)?$/\1/p' "${logs[@]}" | grep -F / | sort -u)
  unfinished=$(comm -23 <(echo "$tests") <(echo "$done_tests"))
  findings=$(cat "${logs[@]}" | awk '
    /ERROR SUMMARY:/ {sum += $4}
    /RACECHECK SUMMARY:/ {sum += $4}
    END {print sum + 0}')
  odd=$(cat "$reports/$tool.codes" 2> /dev/null | awk '$1 != 9 && $1 != 1 && $1 != 124 && $1 != 137')
  seconds=$((SECONDS - begin))
  ran=$(($(count "$done_tests") - $(count "$skipped")))
  if ((findings == 0 && ran > 0)) && [[ -z $bad_tests && -z $unfinished && -z $odd ]]; then
    echo "$tool: clean, $ran tests in $seconds s"
    [[ -n $skipped ]] && sed 's/^/  skips itself on this device: /' <<< "$skipped"
    continue
  fi
  failed=1
  echo "$tool: $findings findings, $(count "$bad_tests") tests failed, $(count "$unfinished") of" \
    "$(count "$tests") did not finish, $(count "$skipped") skipped themselves, in $seconds s; see $reports/$tool.*.log"
  [[ -n $bad_tests ]] && sed 's/^/  failed: /' <<< "$bad_tests"
  [[ -n $unfinished ]] && sed 's/^/  did not finish: /' <<< "$unfinished"
  [[ -n $odd ]] && sed 's/^/  ended with code: /' <<< "$odd"
  ((findings > 0)) && grep -hE '^========= +[^ ]' "${logs[@]}" | grep -vE 'COMPUTE-SANITIZER|SUMMARY' | head -12
done
exit $failed
