#!/usr/bin/env bash
# The Python tests, on the wheel of dist/ in a fresh virtual environment. torch, CuPy and JAX are the machine's own or
# none: what needs them is skipped without them, and says so.
#
# usage: python_tests.sh [pytest argument ...]
# Exit status 77, with the reason as the last line, where there is no wheel or pip cannot fetch what the tests need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

fresh=build/python/fresh
fresh_environment "$fresh"
"$fresh/bin/python" -m pytest -q "$@"
