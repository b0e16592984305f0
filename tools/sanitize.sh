#!/usr/bin/env bash
# ./run sanitize [PROGRAM [CASES [PATTERN]]]: compute-sanitizer's memcheck and racecheck on the first GPU, over so many
# cases of each covering of row-wise top k and of sampling, ragged rows and poisoned padding among them, over the cases
# at the borders of their kernels, and over cases for each kernel. PROGRAM is conformance_tests, without it that of
# build/release; PATTERN is the shell's, of a tool and a test, as 'racecheck *TopK*'. Fails if either tool reports
# anything, or has not ended after kLimitSeconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

program=${1:-build/release/bin/conformance_tests}
cases=${2:-40}
wanted=${3:-*}
command -v compute-sanitizer >/dev/null || cannot "compute-sanitizer is not installed; it comes with the CUDA toolkit"
have_gpu || cannot "there is no GPU"
[[ -x $program ]] || cannot "$program is not built: ./run test builds it"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
kLimitSeconds=600
tests=()
for pattern in 'TopKOnGpu.RunAfterRunIsTheSame/*' SampleOnDevice.RunAfterRunIsTheSame/cuda \
  TopKOnDevice.EqualsTheReferenceToTheBit/cuda TopKOnDevice.EqualsTheReferenceAtEveryBorder/cuda \
  SampleOnDevice.EqualsTheReferenceToTheBit/cuda SampleOnDevice.EqualsTheReferenceAtEveryBorder/cuda \
  SampleOnDevice.EqualsTheReferenceOnChangedRows/cuda SampleOnDevice.EqualsTheReferenceOnRowsOfArrays/cuda; do
  mapfile -t found < <(tests_of "$program" "*/$pattern")
  ((${#found[@]} > 0)) || fail "$program has no test $pattern"
  tests+=("${found[@]}")
done
runs=()
for tool in racecheck memcheck; do  # that which takes longer first
  for test in "${tests[@]}"; do
    # shellcheck disable=SC2053  # a pattern
    if [[ "$tool $test" != $wanted ]]; then continue; fi
    timeout "$kLimitSeconds" compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" --gtest_filter="$test" \
      --max_cases "$cases" --max_seconds 100 >"$logs/$tool ${test//\//_}" 2>&1 &
    runs+=("$!:$tool $test")
  done
done
((${#runs[@]} > 0)) || fail "no tool and test match $wanted"
failed=0
for run in "${runs[@]}"; do
  name=${run#*:}
  log=$logs/${name//\//_}
  status=0
  wait "${run%%:*}" || status=$?
  result=$(outcome "$status" "$log")
  printf '%-7s  %s: %s\n' "$result" "$name" "$(grep -h ' cases, ' "$log" || true)"
  if [[ $result != passed ]]; then
    failed=1
    grep -h -A6 '=========' "$log" | head -40 || true
  fi
done
exit $failed
