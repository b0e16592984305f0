#!/usr/bin/env bash
# ./run sanitize [PROGRAM [CASES]]: compute-sanitizer's memcheck and racecheck on the first GPU, over so many cases of
# each covering of row-wise top k and of sampling, ragged rows and poisoned padding among them, over the cases at the
# borders of their kernels, and over cases for each kernel. PROGRAM is conformance_tests, without it that of
# build/release. Fails if either tool reports anything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

program=${1:-build/release/bin/conformance_tests}
cases=${2:-40}
command -v compute-sanitizer >/dev/null || cannot "compute-sanitizer is not installed; it comes with the CUDA toolkit"
have_gpu || cannot "there is no GPU"
[[ -x $program ]] || cannot "$program is not built: ./run test builds it"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
tests=(TopKOnDevice.RunAfterRunIsTheSame SampleOnDevice.RunAfterRunIsTheSame
  TopKOnDevice.EqualsTheReferenceToTheBit TopKOnDevice.EqualsTheReferenceAtEveryBorder
  SampleOnDevice.EqualsTheReferenceToTheBit SampleOnDevice.EqualsTheReferenceAtEveryBorder
  SampleOnDevice.EqualsTheReferenceOnChangedRows SampleOnDevice.EqualsTheReferenceOnRowsOfArrays)
runs=()
for tool in memcheck racecheck; do
  for test in "${tests[@]}"; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" --gtest_filter="*/$test/cuda" --max_cases "$cases" \
      --max_seconds 100 >"$logs/$tool $test" 2>&1 &
    runs+=("$!:$tool $test")
  done
done
failed=0
for run in "${runs[@]}"; do
  name=${run#*:}
  if wait "${run%%:*}"; then
    printf 'passed  %s: %s\n' "$name" "$(grep -h ' cases, ' "$logs/$name" || true)"
  else
    printf 'FAILED  %s\n' "$name"
    grep -h -A6 '=========' "$logs/$name" | head -40
    failed=1
  fi
done
exit $failed
