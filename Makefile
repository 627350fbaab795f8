# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
#
#   make serve   chat with a demo model: sets up what is missing, then serves (SERVE="--port 8080")
#   make test    everything that CI runs
#   make tsan    the CPU platform's thread pool under ThreadSanitizer
#   make fuzz    the control plane under sanitizers: 12 million random messages, then every order
#   make soak    a server of 64 pages under all that clients do: ten minutes (SOAK="--seed 1")
#   make bench-scheduler   our control plane beside the published one, on the same work
#   make bench-host        what a decode step costs the engine's loop, by phase; needs no GPU
#   make docs    the documentation site, in build/site
#   make setup   only what `make serve` does before it serves
#   make dev     our distributions as editable installs, for work on them
#
# Needs g++, Python's headers and venv; what is missing is named with the line that installs it.

PYTHON ?= python3
TORCH  ?= torch>=2.11,<3
VENV   ?= .venv
SERVE  ?=

.PHONY: serve test tsan fuzz soak docs setup dev clean bench-scheduler bench-host
.DEFAULT_GOAL := serve

SETUP = "$(PYTHON)" tools/setup_env.py --venv "$(VENV)" --torch "$(TORCH)"

serve: setup
	@"$(VENV)/bin/python" tools/serve.py $(SERVE)

setup:
	@$(SETUP) --with demo

dev:
	@$(SETUP) --with demo --with unit --with test --with docs --editable

test:
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" VENV="$(VENV)" "$(PYTHON)" tools/run_tests.py

tsan:
	@PATH="$(VENV)/bin:$$PATH"; \
	cmake -S plugins/cpu/csrc/tests -B build/tsan -G Ninja >/dev/null && \
	cmake --build build/tsan && ctest --test-dir build/tsan --output-on-failure

FUZZ_MESSAGES ?= 12000000
fuzz:
	@PATH="$(VENV)/bin:$$PATH"; \
	cmake -S tokenspeed-core -B build/fuzz -G Ninja -DTOKENSPEED_BUILD_TESTS=ON \
	    -DTOKENSPEED_BUILD_MODULE=OFF -DTOKENSPEED_SANITIZE=ON >/dev/null && \
	cmake --build build/fuzz --target tokenspeed_fuzz tokenspeed_explore && \
	build/fuzz/csrc/fuzz/tokenspeed_fuzz --messages $(FUZZ_MESSAGES) && \
	build/fuzz/csrc/fuzz/tokenspeed_explore --most-states 30000

SOAK ?=
soak:
	@$(SETUP) --with demo --with unit --with test
	@"$(VENV)/bin/python" tests/soak/soak.py --seconds 600 $(SOAK)

docs:
	@$(SETUP) --with docs
	@"$(VENV)/bin/properdocs" build --strict --quiet
	@echo "Written: build/site/index.html"

bench-scheduler:
	@"$(PYTHON)" tools/setup_env.py --venv build/bench-scheduler --torch none --with bench \
	    --only tokenspeed-sdk --only tokenspeed-core
	@build/bench-scheduler/bin/python bench/scheduler/run.py --save bench/results/scheduler.json

bench-host: setup
	@"$(VENV)/bin/ts" bench host

clean:
	rm -rf "$(VENV)" .venv-* dist build tokenspeed-core/build plugins/*/build
