# All targets use .venv, which `make` creates; the command is then .venv/bin/gpushare.
# PYTHON chooses the interpreter.

ifneq ($(shell uname -s),Linux)
$(error gpushare runs on Linux alone, where the kubelet is: use a machine or a container with Linux)
endif

# Those for which every package has a wheel.
VERSIONS := 3.14 3.13 3.12 3.11
supported = $(shell $(1) -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])' $(VERSIONS) 2>/dev/null && echo $(1))
found = $(firstword $(foreach each,python3 $(addprefix python,$(VERSIONS)),$(call supported,$(each))))
# For `make gpu-bundle`, PYTHON is the version of another machine's Python, such as 3.12.
ifneq ($(filter gpu-bundle,$(MAKECMDGOALS)),)
BUNDLED := $(or $(PYTHON),3.12)
ifeq ($(filter $(VERSIONS),$(BUNDLED)),)
$(error PYTHON=$(BUNDLED): expected the version of the other machine's Python, one of $(VERSIONS))
endif
override PYTHON := $(found)
endif
PYTHON ?= $(found)
BIN := .venv/bin
API := gpushare_plugin/kubelet/api
# Byte code is made of what is imported, which is a small part of what is installed.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
# Without a C compiler on the machine, one is installed as a wheel, for the stand-in library that the tests compile.
COMPILER := $(if $(shell command -v cc gcc clang 2>/dev/null),,compiler)
comma := ,

# All processes, of which the tests start hundreds, share the byte code of the first.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test format lint types layers generated unit generate pictures bench bench-compare clean

demo: .venv/.installed
	$(BIN)/gpushare demo

# The tools of the tests, without running one.
.PHONY: tools
tools: .venv/.developer

test: format lint types layers generated unit

format: .venv/.developer
	$(BIN)/ruff format --check .

lint: .venv/.developer
	$(BIN)/ruff check .

types: .venv/.developer
	$(BIN)/mypy

layers: .venv/.developer
	$(BIN)/lint-imports

# The committed code must be what is generated from the .proto files.
generated: .venv/.developer
	$(BIN)/python -m generators.protobuf

# As many as tests/workers.py says; WORKERS=2 for another number.
WORKERS ?= auto

unit: .venv/.developer
	-$(BIN)/python -m pytest --collect-only >/dev/null # or each worker would compile all tests
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup

# The pages in a real Chromium (Debian: apt-get install chromium), which `make test` skips where it is missing.
.PHONY: test-browser
test-browser: .venv/.developer
	CI=true $(BIN)/python -m pytest -q tests/browser

# Which lines no test reaches. Not part of `make test`: what is measured takes twice the time.
.PHONY: coverage
coverage: .venv/.developer
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist loadgroup
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

generate: .venv/.developer
	$(BIN)/python -m generators.protobuf --write
	$(BIN)/python -m generators.command_line
	$(BIN)/python -m generators.config_tables
	$(BIN)/python -m generators.isolation_table
	$(BIN)/python -m generators.simulation_page
	$(BIN)/python -m generators.metrics_table
	$(BIN)/python -m generators.events_table
	$(BIN)/python -m generators.refusals_table
	$(BIN)/python -m generators.alerts_page
	$(BIN)/python -m generators.log_events
	$(BIN)/python -m generators.pictures
	$(BIN)/python -m tests.browser.screens
	$(BIN)/python -m generators.chart_schema
	$(BIN)/python -m generators.dashboard
	$(BIN)/python -m generators.recorded
	$(BIN)/python -m generators.chart_values
	$(BIN)/python -m tests.chart.rendering --write

# The pictures of README.md, from a run of the demonstration.
pictures: .venv/.developer
	$(BIN)/python -m generators.pictures

# The pictures of docs/web.md, from a real Chromium.
.PHONY: web-pictures
web-pictures: .venv/.developer
	$(BIN)/python -m tests.browser.views

# The picture of docs/packing.md, from a real Chromium.
.PHONY: simulation-picture
simulation-picture: .venv/.developer
	$(BIN)/python -m tests.browser.simulation

# The dashboard, checked by Grafana's own packages and TypeScript's compiler: 200 MB from the npm registry, once (Debian: apt-get
# install nodejs npm prometheus). Not part of `make test`.
.PHONY: check-dashboard
GRAFANA := dist/grafana
check-dashboard: .venv/.developer $(GRAFANA)/.installed
	CI=true GRAFANA_PACKAGES=$(abspath $(GRAFANA)) $(BIN)/python -m pytest -q tests/monitoring/test_grafana.py

$(GRAFANA)/.installed: tests/monitoring/grafana/package.json
	mkdir -p $(GRAFANA)
	cp $< $(GRAFANA)
	npm install --prefix $(GRAFANA) --ignore-scripts --no-audit --no-fund --no-package-lock
	touch $@

# The picture of the dashboard: two minutes with Prometheus (Debian, Ubuntu: apt-get install prometheus).
.PHONY: dashboard-picture
dashboard-picture: .venv/.developer
	$(BIN)/python -m generators.dashboard.picture

# The documents as a site in dist/site, beside the versions that are there.
.PHONY: site
site: .venv/.developer
	$(BIN)/python -m generators.site dist/site

# Run after a change of constraints.txt: writes the hashes of what the image is built from. Uses the package index.
.PHONY: hashes
hashes: .venv/.developer
	$(BIN)/python -m tests.chart.hashes

# Wheel, chart, image where one can be built, bill of materials and checksums, in one folder. BASE pins the base image,
# REPOSITORY is where the image is published, which the packaged chart then has as its default.
.PHONY: release
release: .venv/.developer
	$(BIN)/python -m generators.release dist/gpushare$(if $(BASE), --base $(BASE))$(if $(REPOSITORY), --repository $(REPOSITORY))

# Measures all figures and their floors, or ONLY=allocate (see benchmarks/registry.py); JSON is the file to write. Figures
# are the medians of RUNS runs; SHARE=0.1 repeats and watches a tenth of what is repeated and watched otherwise.
JSON ?= bench.json
RUNS ?= 3
SHARE ?= 1
bench: .venv/.developer
	$(BIN)/python -m benchmarks run --json $(JSON) --runs $(RUNS) --share $(SHARE) $(addprefix --only ,$(ONLY))

# What changed between two such files: make bench-compare OLD=before.json NEW=after.json
bench-compare: .venv/.developer
	@test -n "$(OLD)" -a -n "$(NEW)" || { echo "usage: make bench-compare OLD=before.json NEW=after.json" >&2; exit 2; }
	$(BIN)/python -m benchmarks compare $(OLD) $(NEW)

# Compares placement policies on a published trace, and checks the goals; docs/adr/0029 says where the files come from:
# make bench-packing TRACE=DIR
.PHONY: bench-packing
bench-packing: .venv/.installed
	@test -f "$(TRACE)/nodes.csv" -a -f "$(TRACE)/pods_default.csv" || { echo "usage: make bench-packing TRACE=DIR, a directory with nodes.csv and pods_default.csv (docs/adr/0029-what-a-free-piece-is-worth.md)" >&2; exit 2; }
	$(BIN)/python -m benchmarks.packing $(TRACE)

# Shows on the NVIDIA GPUs of this machine what gpushare does there, and writes a report. STEPS="memory turns" for some of
# the steps; OPTIONS=--may-change lets it set compute modes as `gpushare mps` does. The steps with MPS need root: SUDO=sudo.
.PHONY: gpu gpu-bundle
REPORT ?= dist/gpus.md
gpu: .venv/.installed
	mkdir -p $(dir $(REPORT))
	$(SUDO) env PYTHONDONTWRITEBYTECODE=1 GRPC_VERBOSITY=NONE $(BIN)/python -m real_gpus --report $(REPORT) $(addprefix --only ,$(STEPS)) $(OPTIONS)

# The same as an archive for a machine without a network: make gpu-bundle PYTHON=3.12
gpu-bundle: .venv/.installed
	$(BIN)/python -m generators.gpu_bundle $(BUNDLED) dist/gpushare-gpu-python$(BUNDLED).tar.gz

# pip is what comes last: an environment without it is one whose creation failed, and is made anew.
.venv/bin/pip:
	@test -n "$(PYTHON)" || { echo "no Python of a version that gpushare supports found ($(VERSIONS)): install one of them, or set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make environments: install python3-venv (Debian, Ubuntu), or set PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Creating a Python environment in .venv …"
	$(PYTHON) -m venv --clear .venv

.venv/.installed: .venv/bin/pip pyproject.toml constraints.txt
	@echo "Installing gpushare and the packages that it needs into .venv (once; 1 to 2 minutes):"
	@rm -f $@.failed; { $(PIP) -e . || touch $@.failed; } | while read -r what name _; do case "$$what $$name" in \
	  "Collecting "*) printf '%s ' "$${name%%[<>=!~;[]*}";; \
	  "Installing collected") printf '\nInstalling them …\n';; \
	esac; done; test ! -e $@.failed
	touch $@

.venv/.developer: .venv/.installed
	@echo "Installing the tools of the tests into .venv (once) …"
	$(PIP) --quiet -e '.[dev$(if $(COMPILER),$(comma)$(COMPILER))]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage* dist
