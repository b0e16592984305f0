#!/usr/bin/env bash
# ./run test [--full]: every check in turn. A check that fails does not stop the others; the end is one table of what
# passed, failed and was skipped, and why. Logs and JUnit files lie in build/reports.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

kSkipped=77            # a step's exit status; its last line of output is the reason
kLimitSeconds=1500     # of one test program, so that a hang ends as a failure
kFullLimitSeconds=4800 # of one with --full: qemu and the thread sanitizer are slow on a busy machine
kMostParts=5           # of a test program that run side by side: each needs memory
reports=build/reports

full=no
case ${1:-} in
  '') ;;
  --full)
    full=yes
    kLimitSeconds=$kFullLimitSeconds
    ;;
  *) wrong_use "test $1" ;;
esac

# step NAME FUNCTION [argument ...]
step() {
  local name=$1 start=$SECONDS status result
  shift
  printf '\n=== %s\n' "$name"
  set +e
  (set -e; "$@") 2>&1 | tee "$reports/${name//[^a-z0-9]/_}.log"
  status=${PIPESTATUS[0]}
  set -e
  case $status in
    0) result=passed ;;
    "$kSkipped") result=skipped ;;
    *) result=failed ;;
  esac
  printf '%s\t%s\t%d\t%s\n' "$name" "$result" $((SECONDS - start)) "build/reports/${name//[^a-z0-9]/_}.log" \
    >>"$reports/steps.tsv"
}
skip() {
  echo "$1"
  return $kSkipped
}

check_format() {
  [[ -n $(clang_format) ]] || skip "clang-format-14 is not installed"
  ./run format --check
}

# With the CUDA backend where nvcc is there.
build_preset() {
  configure "$@"
  build "$1"
}

# run_tests PRESET PROGRAM [command that runs it ...]: in parts, side by side, since most of what the tests take is the
# reference's one thread. A GPU has them all in one. Every part has each so-manieth test, where those of the CPU and of a
# GPU, which are skipped, take turns: hence an odd number.
run_tests() {
  local preset=$1 program=$2 parts=1 part log status=0
  shift 2
  if ! have_gpu; then parts=$((($(nproc) < kMostParts ? $(nproc) : kMostParts) | 1)); fi
  trap 'kill $(jobs -p) 2>/dev/null' INT TERM
  for ((part = 0; part < parts; part++)); do
    log=$reports/$preset-$program-$part
    GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part timeout $kLimitSeconds "$@" "build/$preset/bin/$program" \
      --gtest_brief=1 --gtest_output="xml:$log.xml" >"$log.log" 2>&1 &
  done
  for part in $(jobs -p); do wait "$part" || status=$?; done
  cat "$reports/$preset-$program"-*.log
  return $status
}

# The tests that take longest under the sanitizer, whose code others run too, are left to --full.
address_sanitizer() {
  if [[ $full == yes ]]; then
    run_tests asan "$1"
    return
  fi
  local left_out="CpuFlat.EveryIsa*:CpuFlat.EveryDistribution*:Threads.AnyNumber*:*TopKOnDevice.*AtEveryBorder*"
  left_out+=":*IvfPqRecall.*:flat_index.a_thousand_searches*:CertifiedSearch.EqualsTheFullOne*"
  # What GPUs do otherwise, and the CPU does not.
  left_out+=":*IvfPqOnDevice.RowsMarked*:*IvfPqOnDevice.RowsOfMany*:*IvfPqOnDevice.RowsThat*:*SampleOnDevice.*FlatRows*"
  left_out+=":*IvfPqOnDevice.ManyRows*:*IvfPqOnDevice.MoreEqual*"
  GTEST_FILTER="-$left_out" SHORTLIST_TEST_SECONDS=${SHORTLIST_TEST_SECONDS:-60} run_tests asan "$1"
}

# An installed copy, found by find_package from a project of its own, which builds and runs the README's example.
consume() {
  rm -rf build/consumer
  cmake --install build/$preset --prefix build/consumer/prefix >/dev/null
  cmake -S tests/package -B build/consumer/build -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$PWD/build/consumer/prefix"
  cmake --build build/consumer/build
  ctest --test-dir build/consumer/build --output-on-failure
}

# The wheel that was just built, from outside.
python_tests() {
  timeout $kLimitSeconds tools/python_tests.sh --junitxml="$reports/python.xml"
}

# fuzz SECONDS: each reader of files for so long, from the seeds that the build writes.
fuzz() {
  local seconds=$1 program family
  command -v clang++ >/dev/null || skip "clang++ is not installed"
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer -x c++ - -o /dev/null 2>/dev/null || skip "clang++ has no libFuzzer"
  configure fuzz
  build fuzz fuzzers
  for program in build/fuzz/bin/fuzz_*; do
    family=${program##*/fuzz_}
    "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
      -artifact_prefix="$reports/$family-" "build/fuzz/corpus/$family"
  done
}

# The thread sanitizer's shadow memory collides with a fully random address space; where the kernel lets us, go without.
thread_sanitizer_build() {
  tools/tsan_tbb.sh >/dev/null || skip "oneTBB's sources cannot be fetched on this machine"
  build_preset tsan
}
thread_sanitizer() {
  [[ -x build/tsan/bin/$1 ]] || skip "there is no thread sanitizer build"
  local fixed_addresses=()
  if setarch -R true 2>/dev/null; then fixed_addresses=(setarch -R); fi
  TSAN_OPTIONS="suppressions=$PWD/build/tsan-tbb/source/cmake/suppressions/tsan.suppressions halt_on_error=1" \
    run_tests tsan "$1" "${fixed_addresses[@]}"
}

aarch64_build() {
  command -v aarch64-linux-gnu-g++ >/dev/null || skip "aarch64-linux-gnu-g++ is not installed"
  command -v qemu-aarch64-static >/dev/null || skip "qemu-aarch64-static is not installed"
  tools/aarch64_packages.sh || skip "the arm64 packages cannot be fetched on this machine"
  configure aarch64
  build aarch64 unit_tests conformance_tests
}

aarch64() {
  [[ -x build/aarch64/bin/$1 ]] || skip "there is no aarch64 build"
  run_tests aarch64 "$1" qemu-aarch64-static -L /usr/aarch64-linux-gnu
}

compute_sanitizer() {
  have_gpu || skip "there is no GPU"
  command -v compute-sanitizer >/dev/null || skip "compute-sanitizer is not installed"
  tools/sanitize.sh build/$preset/bin/conformance_tests
}

tidy() {
  command -v clang-tidy >/dev/null || skip "clang-tidy is not installed"
  git ls-files 'src/*.cpp' 'cli/*.cpp' | grep -v -x -e "src/cuda/$(cuda_file_left_out).cpp" |
    xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p build/$preset --extra-arg=-Wno-unknown-warning-option
}
cuda_file_left_out() { [[ -n $(find_nvcc) ]] && echo unavailable || echo loader; }

need build test
want format
if [[ $full == yes ]]; then want full; fi
rm -rf $reports
mkdir -p $reports
# Where no GPU is, CUDA code need only be compiled.
preset=release
if [[ $full == no ]] && ! have_gpu; then preset=quick; fi

step "dependency rule" tools/check_dependencies.py --self-test
step "documents" tools/docs.py --check
step "format" check_format
step "$preset build" build_preset $preset
step "unit tests, $preset" run_tests $preset unit_tests
if [[ $full == yes ]]; then export SHORTLIST_TEST_FULL=1; fi
step "conformance tests, $preset" run_tests $preset conformance_tests
unset SHORTLIST_TEST_FULL
step "program, $preset" tests/program/program_test.sh build/$preset/bin/shortlist
step "consumer of the package" consume
step "wheel" wheel_for_this_machine
step "Python tests" python_tests
step "address sanitizer build" build_preset asan
step "unit tests, address sanitizer" address_sanitizer unit_tests
step "conformance tests, address sanitizer" address_sanitizer conformance_tests
step "program, address sanitizer" tests/program/program_test.sh build/asan/bin/shortlist
if [[ $full == yes ]]; then
  step "fuzzing" fuzz 60
  step "thread sanitizer build" thread_sanitizer_build
  step "unit tests, thread sanitizer" thread_sanitizer unit_tests
  step "conformance tests, thread sanitizer" thread_sanitizer conformance_tests
  step "compute-sanitizer" compute_sanitizer
  step "aarch64 build" aarch64_build
  step "unit tests, aarch64" aarch64 unit_tests
  step "conformance tests, aarch64" aarch64 conformance_tests
  step "clang-tidy" tidy
else
  step "fuzzing" fuzz 5
fi

tools/summarize_tests.py $reports
