#!/usr/bin/env bash
# The Python tests, on the wheel of dist/ in a fresh virtual environment. torch, CuPy and JAX are the machine's own or
# none: what needs them is skipped without them, and says so.
#
# usage: python_tests.sh [pytest argument ...]
# Exit status 77, with the reason as the last line, where there is no wheel or pip cannot fetch what the tests need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/common.sh

kSkipped=77
cannot() {
  say "$1"
  exit $kSkipped
}

python=$(python_for_wheels) || cannot "no Python 3.11 or later with venv and headers"
shopt -s nullglob
wheels=(dist/shortlist-*.whl)
((${#wheels[@]} == 1)) || cannot "there is no wheel in dist; ./run wheel makes it"

fresh=build/python/fresh
options=()
if "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("torch") or u.find_spec("cupy") or u.find_spec("jax")))'; then
  options=(--system-site-packages)
fi
rm -rf "$fresh"
"$python" -m venv "${options[@]}" "$fresh"
"$fresh/bin/pip" install -q "${wheels[0]}[test]" >&2 || cannot "pip cannot fetch numpy, pytest, hypothesis and ml_dtypes"
"$fresh/bin/python" -m pytest -q "$@"
