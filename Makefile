# `make` lists the targets. Each calls one tool or one script; nothing is decided here.

SHELL := bash
.DEFAULT_GOAL := help
CHECKS := check-types check-layers check-format check-lint check-spelling check-tidy check-advisories bench-guard check-measured
# Hundreds of short processes import the same modules: they compile them once, whatever the caller's
# environment says.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup run up down fmt check $(CHECKS) test test-fast test-thorough test-again test-all docs drill prove bench bench-peers bench-turns lock advisories images wheel release-check clean

BIN := .venv/bin
CODE := $(wildcard statestore jobs dags scripts tests)
PYTEST = SET_UP_SECONDS=$$(cat .venv/.set-up-seconds) $(BIN)/python -m pytest
# Two processes more than there are cores, as tests wait: for brokers, for processes they killed.
SIDE_BY_SIDE = --numprocesses=$$(( $$(nproc) + 2 )) --maxprocesses=4
# A module stays in one process, as its tests share a broker.
BY_MODULE = --dist=loadfile --no-loadscope-reorder

help:
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Try it
run: setup ## set up, load the sample data, process it once, show the results
	@$(BIN)/python -m scripts.demo run

up: setup ## start Kafka and Airflow and leave them up
	@$(BIN)/python -m scripts.demo up

down: ## stop what `make up` started
	@test ! -x $(BIN)/python || $(BIN)/python -m scripts.demo down

##@ Work on it
setup: ## check Python, Java and Maven; install the locked environment into .venv
	@scripts/setup.sh

fmt: setup ## format the code, fix what can be fixed safely, and make what is made of other sources
	@$(BIN)/ruff check --fix-only --quiet $(CODE)
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/python -m scripts.blocking_client
	@$(BIN)/python -m scripts.reference_names

check: setup ## format, lint, types, layers, spelling, tidiness, advisories, costs of records: every fault at once
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync $(CHECKS)

check-format:
	@$(BIN)/ruff format --check --output-format=concise $(CODE)

check-lint:
	@$(BIN)/ruff check --output-format=concise $(CODE)

check-types:
	@$(BIN)/mypy $(CODE)

check-layers:
	@$(BIN)/lint-imports --no-logo

check-spelling:
	@git ls-files -z | xargs -0 $(BIN)/codespell

check-advisories:
	@$(BIN)/python -m scripts.advisories check

check-tidy:
	@$(BIN)/python -m pytest --quiet --no-header --durations=0 tests/test_tidy.py tests/unit/test_layers.py \
	  tests/docs/test_coming_from.py tests/docs/test_names_in_pages.py tests/docs/test_reference.py tests/docs/test_site.py

bench-guard: setup ## count what records cost, and compare (ACCEPT="reason" writes the table)
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.bench.bench_guard $(if $(ACCEPT),--accept "$(ACCEPT)")

check-measured:
	@$(BIN)/python -m tests.bench.measured

docs: setup ## build the documentation site; open .scratch/site/index.html
	@NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --quiet

bench: setup ## measure stores and tasks; figures go to .scratch/bench
	@$(BIN)/python -m tests.bench.bench_stores
	@$(BIN)/python -m tests.bench.bench_defaults
	@$(BIN)/python -m tests.bench.bench_versions
	@$(BIN)/python -m tests.bench.bench_processors
	@$(BIN)/python -m tests.bench.bench_serdes
	@$(BIN)/python -m tests.bench.bench_arrow
	@$(BIN)/python -m tests.bench.bench_tasks
	@$(BIN)/python -m tests.bench.bench_workers
	@$(BIN)/python -m tests.bench.bench_cpu
	@$(BIN)/python -m tests.bench.bench_floor
	@$(BIN)/python -m tests.bench.bench_epochs
	@$(BIN)/python -m tests.bench.bench_lives
	@$(BIN)/python -m tests.bench.bench_scale
	@$(BIN)/python -m tests.bench.bench_relocation
	@$(BIN)/python -m tests.bench.bench_serve
	@$(BIN)/python -m tests.bench.bench_exports
	@$(BIN)/python -m tests.bench.bench_lost_volumes
	@$(BIN)/python -m tests.bench.bench_repartition
	@$(BIN)/python -m tests.bench.bench_continuous_exports
	@$(BIN)/python -m tests.bench.bench_migrations
	@$(BIN)/python -m tests.bench.bench_ui
	@$(BIN)/python -m tests.bench.bench_kafka_streams

bench-peers: setup ## the same three jobs by Kafka Streams, Flink, Spark and others (PEERS=, JOBS=, RECORDS=, ROUNDS=)
	@$(BIN)/python -m tests.bench.bench_peers $(if $(PEERS),--peers "$(PEERS)") $(if $(JOBS),--jobs "$(JOBS)") \
	  $(if $(RECORDS),--records $(RECORDS)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-turns: setup ## CPU a record beside another commit, in turns (BASE=, JOBS=, TURNS=, RECORDS=, ACCEPT="reason")
	@$(BIN)/python -m tests.bench.bench_turns --base "$(BASE)" $(if $(JOBS),--jobs "$(JOBS)") \
	  $(if $(TURNS),--turns $(TURNS)) $(if $(RECORDS),--records $(RECORDS)) $(if $(ACCEPT),--accept "$(ACCEPT)")

lock: setup ## resolve requirements/lock.txt again from pyproject.toml
	@$(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --all-extras \
	  --group demo --group test --group docs --group dev --group release pyproject.toml -o requirements/lock.txt

advisories: setup ## look up the advisories of the locked packages (DATABASE=, a checkout of PyPA's)
	@$(BIN)/python -m scripts.advisories refresh $(if $(DATABASE),--database $(DATABASE))

images: setup ## pin the images of docker/ by the digests that their tags have now (docker or skopeo)
	@$(BIN)/python -m scripts.pin_images

wheel: setup ## build the wheel into dist/
	@$(BIN)/python -m scripts.release wheel

release-check: setup ## build a release into dist/, twice, and check all of it
	@$(BIN)/python -m scripts.release check

clean: down ## remove caches and scratch files; .venv stays
	@rm -rf .scratch .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	  build dist spark-warehouse metastore_db derby.log *.egg-info
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Test it
test: setup ## the first tier: every promise, on a real broker, Spark and Airflow
	@REQUIRE_KAFKA=1 TEST_TIMES=.scratch/test-times/first $(PYTEST) $(SIDE_BY_SIDE) $(BY_MODULE) -m "not slow and not thorough"

test-fast: setup ## of the first tier what needs no broker, no Spark and no Airflow
	@TEST_TIMES=.scratch/test-times/fast $(PYTEST) $(SIDE_BY_SIDE) --dist=worksteal \
	  -m "not kafka and not spark and not airflow and not slow and not thorough"

test-thorough: setup ## the second tier in an order by commit (SEED= repeats)
	@REQUIRE_KAFKA=1 TEST_TIMES=.scratch/test-times/second SECOND_TIER_SECONDS=$(or $(SECONDS_LEFT),inf) \
	  $(if $(SEED),COMMIT_SEED=$(SEED)) $(PYTEST) $(SIDE_BY_SIDE) $(BY_MODULE) \
	  -m "thorough and not slow"

test-again: setup ## what failed of the last test run, one by one, until one fails again
	@REQUIRE_KAFKA=1 $(PYTEST) --verbose --last-failed --last-failed-no-failures=none --maxfail=1

drill: setup ## kill runs at every crash point and in other ways; report in .scratch/drill (SEED=)
	@$(BIN)/statestore drill --report .scratch/drill $(if $(SEED),--seed $(SEED))

prove: setup ## try to lose and to double records; report in .scratch/prove (HOURS=, SECTIONS=, SEED=)
	@REQUIRE_KAFKA=1 $(BIN)/python -m tests.prove $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(SECTIONS),--sections $(SECTIONS))

test-all: setup ## both tiers, with the long profiles and a browser; every night
	@REQUIRE_KAFKA=1 HYPOTHESIS_PROFILE=long $(PYTEST) -o faulthandler_timeout=3600
