# On a fresh machine: `make run` shows what this does, `make test` tests it. Both set up what they need in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
TESTS ?= tests

# Where `make install` puts things; DESTDIR is for packagers.
PREFIX ?= /usr/local
HOME_DIR ?= /opt/factory-watchdog
UNIT_DIR ?= /etc/systemd/system
CONFIG_DIR ?= /etc/factory-watchdog

.DEFAULT_GOAL := help
.PHONY: help setup run test test-lab lab soak bench year shootout mutants docs lint format install uninstall clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

setup: $(VENV)/.done ## Make the virtual environment with everything for running and testing

# pip learned --group in 25.1; the one that comes with Python 3.11 is older.
$(VENV)/.done: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer; set PYTHON")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	touch $@

run: setup ## Show the main job on a simulated server: idle, busy, long prompt, hang, proven, restarted, serving
	$(BIN)/llm-health demo

test: setup ## Run the tests; what cannot run here is skipped with its reason (REQUIRE_ALL=1: fails instead)
	$(BIN)/python -m pytest $(TESTS)

lab: setup ## Install a real vLLM that runs on the CPU into the lab's cache folder (about 4 GB)
	$(PYTHON) tests/lab/install_vllm.py

test-lab: lab ## Run the tests against that vLLM, in a real systemd (root)
	REQUIRE_ALL=1 $(BIN)/python -m pytest tests/lab

soak: lab ## Freeze that vLLM in every way, long form, and show how soon each was found (root)
	REQUIRE_ALL=1 $(BIN)/python -m pytest -m soak tests/lab

bench: setup ## Measure every budget of the design; nothing else should run meanwhile
	$(BIN)/python benchmarks/bench.py

mutants: setup ## Change the core and the dialects in thousands of ways, and see a unit test fail each time (hours)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group mutants
	$(BIN)/mutmut run
	$(BIN)/mutmut results
	$(BIN)/python tests/falsify.py

docs: setup ## Write the pages of docs/reference anew from the code
	$(BIN)/python docs/generate.py

year: setup ## Play a virtual year of four backends against the law (YEAR="--seed N --days N --week N")
	PYTHONPATH=benchmarks $(BIN)/python -m year $(YEAR)

shootout: setup ## Judge recordings and scenarios by the rules that people use, and write docs/shoot-out.md
	PYTHONPATH=benchmarks $(BIN)/python -m shootout

lint: setup ## Style, types, and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Rewrite the code in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: ## On a host, as root: the program, its unit, user and folders (then: see the README)
	$(PYTHON) -c 'import sys; b = sys.base_prefix + "/"; sys.exit(b.startswith(("/root/", "/home/", "/run/user/")) \
		and b + " is hidden from the service (ProtectHome=yes): set PYTHON to another Python")'
	$(PYTHON) -m venv $(DESTDIR)$(HOME_DIR)
	$(DESTDIR)$(HOME_DIR)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade .
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(UNIT_DIR) $(DESTDIR)$(CONFIG_DIR)
	ln -sfn $(HOME_DIR)/bin/llm-health $(DESTDIR)$(PREFIX)/bin/llm-health
	sed 's|^ExecStart=/usr/local/bin/|ExecStart=$(PREFIX)/bin/|' systemd/factory-watchdog.service \
		> $(DESTDIR)$(UNIT_DIR)/factory-watchdog.service
	install -D -m 644 systemd/factory-watchdog.sysusers $(DESTDIR)/usr/lib/sysusers.d/factory-watchdog.conf
	install -D -m 644 systemd/factory-watchdog.tmpfiles $(DESTDIR)/usr/lib/tmpfiles.d/factory-watchdog.conf
	install -m 644 config.example.toml $(DESTDIR)$(CONFIG_DIR)/config.example.toml
ifeq ($(DESTDIR),)
	systemd-sysusers /usr/lib/sysusers.d/factory-watchdog.conf
	systemd-tmpfiles --create /usr/lib/tmpfiles.d/factory-watchdog.conf
	systemctl daemon-reload
endif

uninstall: ## Remove all of that; configuration and history stay
ifeq ($(DESTDIR),)
	-systemctl disable --now factory-watchdog.service
endif
	rm -f $(DESTDIR)$(UNIT_DIR)/factory-watchdog.service $(DESTDIR)$(PREFIX)/bin/llm-health
	rm -f $(DESTDIR)/usr/lib/sysusers.d/factory-watchdog.conf $(DESTDIR)/usr/lib/tmpfiles.d/factory-watchdog.conf
	rm -f $(DESTDIR)$(CONFIG_DIR)/config.example.toml
	rm -rf $(DESTDIR)$(HOME_DIR)
ifeq ($(DESTDIR),)
	systemctl daemon-reload
endif

clean: ## Remove what building and testing left here
	rm -rf $(VENV) build dist mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
