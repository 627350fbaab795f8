#!/bin/sh
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
#
# Everything that CI runs; `make test` calls it with PYTHON, TORCH and VENV set.
set -eu
cd "$(dirname "$0")/.."

step() {
    printf '\n== %s (%s s)\n' "$1" "$(($(date +%s) - started))"
}
started=$(date +%s)

need_doctest() {
    printf '#include <doctest/doctest.h>\n' | "${CXX:-g++}" -E -x c++ - >/dev/null 2>&1 && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y -qq doctest-dev || { apt-get update -qq && apt-get install -y -qq doctest-dev; }
    else
        echo 'missing: doctest-dev; install with: sudo apt install doctest-dev' >&2
        exit 1
    fi
}

# A Python 3.12 that is not the one under test, or nothing.
python312() {
    for candidate in python3.12 "$(pyenv prefix 3.12 2>/dev/null)/bin/python3.12"; do
        "$candidate" -c '' >/dev/null 2>&1 && echo "$candidate" && return
    done
    return 0
}

step 'set-up'
"$PYTHON" tools/setup_env.py --venv "$VENV" --torch "$TORCH" --with demo --with test --with docs
need_doctest
venv=$(cd "$VENV" && pwd)
PATH=$venv/bin:$PATH
export PATH

step 'ruff'
ruff check .
ruff format --check .

step 'mypy'
MYPYPATH=sdk:tokenspeed-core:plugins/nvidia mypy

step 'import-linter'
PYTHONPATH=plugins/nvidia lint-imports

step 'docs'
properdocs build --strict --quiet

step 'C++ tests'
cmake -S tokenspeed-core -B build/cpp -G Ninja \
    -DTOKENSPEED_BUILD_TESTS=ON -DTOKENSPEED_BUILD_MODULE=OFF >/dev/null
cmake --build build/cpp
ctest --test-dir build/cpp --output-on-failure

for tests in sdk/tests tokenspeed-core/tests plugins/cpu/tests plugins/models/tests tests; do
    step "$tests"
    pytest "$tests"
done

# Not installed: a server must not find a platform that this machine has no device for. Triton is the
# version of the GPU machine, and interprets and compiles without a GPU.
step 'plugins/nvidia/tests'
python -m pip install --quiet --no-deps triton==3.6.0
PYTHONPATH=plugins/nvidia pytest plugins/nvidia/tests

step 'the torch-free part on Python 3.12'
other=$(python312)
if [ -z "$other" ]; then
    echo 'skipped: there is no python3.12 on this machine'
elif [ "$("$venv/bin/python" -c 'import sys; print(sys.version_info[:2] == (3, 12))')" = True ]; then
    echo 'skipped: everything above ran on it'
else
    "$other" tools/setup_env.py --venv .venv-3.12 --torch none --with test \
        --only tokenspeed-sdk --only tokenspeed-core
    .venv-3.12/bin/pytest -q $(cat tests/torch_free.txt)
fi

step 'all passed'
