# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The TokenSpeed authors
#
#   make serve   chat with a demo model: sets up what is missing, then serves (SERVE="--port 8080")
#   make test    everything that CI runs
#   make docs    the documentation site, in build/site
#   make setup   only what `make serve` does before it serves
#   make dev     our distributions as editable installs, for work on them
#
# Needs g++, Python's headers and venv; what is missing is named with the line that installs it.

PYTHON ?= python3
TORCH  ?= torch>=2.11,<3
VENV   ?= .venv
SERVE  ?=

.PHONY: serve test docs setup dev clean
.DEFAULT_GOAL := serve

SETUP = "$(PYTHON)" tools/setup_env.py --venv "$(VENV)" --torch "$(TORCH)"

serve: setup
	@"$(VENV)/bin/python" tools/serve.py $(SERVE)

setup:
	@$(SETUP) --with demo

dev:
	@$(SETUP) --with demo --with test --with docs --editable

test:
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" VENV="$(VENV)" tools/test.sh

docs:
	@$(SETUP) --with docs
	@"$(VENV)/bin/properdocs" build --strict --quiet
	@echo "Written: build/site/index.html"

clean:
	rm -rf "$(VENV)" .venv-* dist build tokenspeed-core/build plugins/*/build
