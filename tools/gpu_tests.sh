#!/usr/bin/env bash
# ./run gpu [PROGRAM [FILTER]]: the conformance tests that need a GPU, each in a process of its own and as many side by
# side as there are cores: most of what they take is the reference's one thread. PROGRAM is conformance_tests, without
# it that of build/release; FILTER is GoogleTest's. What is skipped is counted and named, as tests are that need two
# GPUs. Fails if a test fails or has not ended after kLimitSeconds, or if none passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

program=${1:-build/release/bin/conformance_tests}
filter=${2:-*}
kLimitSeconds=600
have_gpu || cannot "there is no GPU"
[[ -x $program ]] || cannot "$program is not built: ./run test builds it"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Those without a parameter first: they are in no parts, and take longest.
list_tests() {
  tests_of "$program" "$filter" | grep -v '/cpu$' | awk '{ print (/\// ? 2 : 1), $0 }' | sort -s -k 1,1n | cut -d ' ' -f 2
}

run_one() {
  local log=$logs/${1//\//_} status=0
  timeout "$kLimitSeconds" "$program" --gtest_filter="$1" >"$log" 2>&1 || status=$?
  echo "$(outcome "$status" "$log") $1"
  grep -h -A 6 'Failure$' "$log" | head -20 >&2 || true
}
export -f run_one outcome
export program kLimitSeconds logs

list_tests | xargs -P "$(nproc)" -I{} bash -c 'run_one {}' >"$logs/outcomes"
passed=$(grep -c '^passed' "$logs/outcomes" || true)
skipped=$(grep -c '^skipped' "$logs/outcomes" || true)
all=$(wc -l <"$logs/outcomes")
grep -v '^passed' "$logs/outcomes" || true
printf '%d passed, %d skipped, %d failed or cut off\n' "$passed" "$skipped" $((all - passed - skipped))
((passed > 0 && passed + skipped == all))
