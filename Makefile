# Every target does its own set-up: a virtual environment in .venv, the dependencies and, for what runs Spark, Java.
# Needed beforehand: make and a Python 3.11 or newer. The work is done by the scripts in tools/.

VENV    := .venv
PYTHON  := $(VENV)/bin/python
READY   := $(VENV)/.ready
SITE    := $(VENV)/.site
SPARK   := sh tools/with_spark.sh $(PYTHON)
FETCH   := { $(PYTHON) tools/fetch.py || test -z "$$CI"; }
FETCH_SLOW := { $(PYTHON) tools/fetch.py --slow || test -z "$$CI"; }
ARCHIVE := $(SPARK) tools/class_archive.py
TESTS   := sh tools/in_memory.sh $(SPARK) -m pytest -n 3 --dist loadscope --no-loadscope-reorder

DEMO        = examples/demo.py
BENCHMARKS  = $(sort $(shell grep -l __main__ benchmarks/*.py))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo docs test test-slow cuts check branches format bench peers mutants prove traces explore java services services-stop fetched installed setup clean

# The stamp holds the folder that it was made for: in a copied or moved checkout the installed package would still be
# the old folder's, so the set-up runs again there.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: java $(READY) ## run the demonstration
	@$(SPARK) $(DEMO)

# Whoever only tests the pages (tests/docs) needs none of this: the tools for the site are an extra of their own.
docs: $(SITE) ## build the documentation as a site, in build/site; a warning is a failure
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo "docs: build/site/index.html"

$(SITE): $(READY)
	@$(VENV)/bin/uv pip install --quiet --python $(PYTHON) --editable '.[dev,docs]' 2>/dev/null \
		|| $(PYTHON) -m pip install --quiet --editable '.[dev,docs]'
	@touch $(SITE)

# A fault of style must not hide what the tests say, so they run in any case; the target fails if either failed. The check runs
# while things are fetched, which is waiting for the most part, and while the class archive is made.
test: installed ## all of CI: check, then every test that is not slow
	@$(FETCH) & fetching=$$!; \
	$(ARCHIVE) & archiving=$$!; \
	checked=yes; $(MAKE) --no-print-directory check || checked=no; \
	covered=yes; $(MAKE) --no-print-directory branches || covered=no; \
	wait $$archiving; wait $$fetching || exit 1; \
	$(TESTS) -m "not slow" || exit 1; \
	test $$checked = yes || { echo "the tests passed, but make check failed: see above" >&2; exit 1; }; \
	test $$covered = yes || { echo "the tests passed, but make branches failed: see above" >&2; exit 1; }

test-slow: fetched ## the tests that make test leaves out: soaks, and the rest of each matrix; the last line says how long
	@$(FETCH_SLOW); $(ARCHIVE); $(TESTS) -m "slow and not cuts"

cuts: fetched ## cut the network of a job in every way, for hours, and write docs/faults-tried.md of what was seen
	@$(ARCHIVE); TIDEGATE_TRIED=tests/hosts/tried sh tools/in_memory.sh $(SPARK) -m pytest -m cuts || exit 1; \
	$(PYTHON) tools/faults_tried.py

check: $(READY) ## quick: format, lint, types, import rules
	@failed=; \
	echo "check: format"; $(PYTHON) -m ruff format --check --quiet . || failed="$$failed format"; \
	echo "check: lint"; $(PYTHON) -m ruff check --quiet . || failed="$$failed lint"; \
	echo "check: types"; $(PYTHON) -m mypy --no-error-summary || failed="$$failed types"; \
	echo "check: import rules"; $(VENV)/bin/lint-imports --no-cache --no-logo >$(VENV)/imports.txt 2>&1 || \
		{ cat $(VENV)/imports.txt; failed="$$failed imports"; }; \
	$(PYTHON) -m pytest -q tests/unit/test_import_rules.py || failed="$$failed import-rules"; \
	test -z "$$failed" || { echo "make check failed:$$failed (make format repairs some of it)" >&2; exit 1; }

format: $(READY) ## format the code and repair what the linter can repair
	@$(PYTHON) -m ruff check --fix-only --quiet .
	@$(PYTHON) -m ruff format .

bench: java $(READY) ## run the benchmarks and print their results as JSON
	@for script in $(BENCHMARKS); do echo "bench: $$script" >&2; $(SPARK) $$script || exit 1; done

# Each peer in an environment of its own, made at the first run, in the user's cache (about 1 GB). PEERS="--only columns,flink_sql"
# leaves others out.
peers: java $(READY) ## Tidegate beside Flink, PyFlink, Spark, Bytewax and Pathway: the same work, in turn
	@$(SPARK) benchmarks/peers/compare.py --check $(PEERS)

mutants: java $(READY) ## plant named faults in the protocol; the tests must catch each
	@sh tools/in_memory.sh $(SPARK) tools/mutants.py

prove: java $(READY) ## check the specification of the protocol (spec/) with TLC; planted faults must be found
	@$(PYTHON) tools/prove.py

traces: java $(READY) ## a thousand random runs, each compared with the specification
	@sh tools/in_memory.sh $(SPARK) tests/protocol/traced_runs.py 1000

explore: $(READY) ## every choice in small worlds of the real code, crashes too, for half an hour; nothing may be wrong
	@$(PYTHON) tests/exploration/explore.py

branches: $(READY) ## branch coverage of protocol/ and of the job's log: all of it, or it fails
	@$(PYTHON) tools/branches.py

setup: java $(READY) ## the set-up alone

services: fetched ## start PostgreSQL, MariaDB and Kafka for trying things by hand
	@$(PYTHON) tools/running_services.py start

services-stop: $(READY) ## stop them
	@$(PYTHON) tools/running_services.py stop

# Everything that tests need and the environment does not bring, before the first of them begins: the machine's packages, which
# are installed while the environment is, and what tools/fetch.py fetches. Where something cannot be had the tests that need it
# are skipped and say why; in CI that is a failure.
fetched: installed
	@$(FETCH)

installed:
	@sh tools/services.sh & services=$$!; \
	$(MAKE) --no-print-directory setup || exit 1; \
	wait $$services || test -z "$$CI"

java:
	@sh tools/java.sh >/dev/null

$(READY): pyproject.toml tools/setup.sh
	@sh tools/setup.sh $(VENV)
	@echo "$(CURDIR)" >$(READY)

clean: ## remove all that make has made, .venv included
	rm -rf $(VENV) build dist spark-warehouse artifacts .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
