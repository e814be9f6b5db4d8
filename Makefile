# `make check` and `make test` need nothing installed but Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# An editable install in strict mode lists the files, so it is repeated when a directory gains or loses one.
PACKAGES := harness harness/drivers reference properties models impl impl/engines impl/faulty

.PHONY: check test lint tests bench symbolic clean

check: $(READY)
	$(BIN)/kvlockstep check

test: $(READY) lint tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p kvlockstep
	$(BIN)/lint-imports

tests: $(READY)
	$(BIN)/pytest

bench: $(READY)
	$(BIN)/kvlockstep bench
	$(BIN)/pytest --override-ini addopts=--import-mode=importlib tests/bench

# Hypothesis with CrossHair's symbolic values as its backend; it gates nothing.
symbolic: $(READY)
	$(BIN)/python -m pip install -qq --constraint constraints.txt hypothesis-crosshair
	$(BIN)/pytest --override-ini addopts=--import-mode=importlib --hypothesis-profile kvlockstep-symbolic tests/symbolic

$(READY): $(VENV)/.dependencies $(PACKAGES)
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --config-settings editable_mode=strict --editable .
	touch $@

$(VENV)/.dependencies: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --constraint constraints.txt torch setuptools
	$(BIN)/python -m pip install -qq --constraint constraints.txt '.[test,engines]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .kvlockstep .hypothesis
