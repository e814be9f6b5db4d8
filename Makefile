# `make check` and `make test` need nothing installed but Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# With what the gate needs, and with what the tests need.
CORE := $(VENV)/.core
READY := $(VENV)/.ready
CLUSTER := $(VENV)/.cluster
# Python compiles a module when it is first imported. Most modules of torch and ray never are.
INSTALL := $(BIN)/python -m pip install -qq --no-compile --constraint constraints.txt
# Where mypy and import-linter find kvlockstep, which for them has to be one folder: links to ours.
LINKS := build/lint

# If a caller sets it, each of the hundreds of processes that tests start compiles kvlockstep again, for a second.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check docs test beside lint tests slow outside collected cluster wheel gate bench gpu score mutation engines symbolic clean

check: $(READY)
	$(BIN)/kvlockstep check

# The tests keep all cores busy. Each of the others is mostly one process, or waits: they go side by side before.
test: $(CORE)
	$(MAKE) --jobs 4 --output-sync=target beside lint outside
	$(MAKE) tests

# Everything that it prints stays in build/gate.txt.
beside:
	mkdir -p build; nice -n 5 $(MAKE) --no-print-directory gate > build/gate.txt 2>&1 || { cat build/gate.txt; exit 1; }
	tail -n 1 build/gate.txt

# Both build from this folder, so the wheel comes behind what installs for the cluster. Collecting compiles all modules:
# the workers of `make tests` would all do it at the same time.
outside: $(CLUSTER)
	$(MAKE) cluster wheel collected

collected: $(READY)
	$(BIN)/pytest --collect-only -qq > /dev/null

# Every fault is caught, and nothing that is right is blamed. `make score` takes three seeds, and looks longer for blame.
# Of the first five seeds this one is among the soonest to find the farthest faults.
gate: $(CORE)
	$(BIN)/kvlockstep score --seed 1 --clean-times 0.005

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(LINKS) && mkdir -p $(LINKS)/kvlockstep
	ln -s $(CURDIR)/harness/* $(addprefix $(CURDIR)/,reference properties models impl) $(LINKS)/kvlockstep
	MYPYPATH=$(LINKS) $(BIN)/mypy -p kvlockstep
	PYTHONPATH=$(LINKS) $(BIN)/lint-imports

# docs/contracts.md, docs/divergences.md, and the tables of traits and lists of rules in the other pages.
docs: $(READY)
	$(BIN)/python -m kvlockstep.show.contract_docs docs

# A worker more than cores: many tests wait for what hangs.
tests: $(READY)
	$(BIN)/pytest --numprocesses $$($(BIN)/python -c 'import os; print(min(8, os.cpu_count() + 1))') --dist worksteal

# What `make tests` has no time for: all states of larger scopes, far KV in the interpreter, checks beside busy loops.
slow: $(READY)
	$(BIN)/pytest -m slow

# Campaigns on a Ray cluster of two nodes and a Redis server, both started by the tests: under a minute with installing.
cluster: $(CLUSTER)
	$(BIN)/pytest --override-ini addopts=--import-mode=importlib tests/cluster

# A wheel, and what a new user does with it in a fresh environment without torch: half a minute, most of it installing.
wheel: $(READY)
	rm -rf build/lib build/bdist.* build/wheel
	$(BIN)/python -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(BIN)/python tests/wheel/try_wheel.py build/wheel/kvlockstep-*.whl

bench: $(READY)
	$(BIN)/kvlockstep bench
	$(BIN)/pytest --override-ini addopts=--import-mode=importlib tests/bench

# Needs a card, and a PYTHON with the CUDA build of torch and the packages of pyproject.toml; writes docs/gpu.md.
gpu:
	$(PYTHON) -m pip install -qq --no-deps --no-build-isolation --upgrade --target build/gpu .
	PYTHONPATH=build/gpu $(PYTHON) -m pytest -m gpu $$(grep -rlE 'mark\.gpu|[(, ]device\)' tests/contracts tests/harness tests/suite)
	PYTHONPATH=build/gpu $(PYTHON) -m kvlockstep.bench.gpu_report
	PYTHONPATH=build/gpu $(PYTHON) -m kvlockstep.bench.gpu_kernels build/kernels.md

# With three seeds, all drivers, short traces, and twenty times as many steps of known-good targets as the gate.
score: $(READY)
	$(BIN)/kvlockstep score --thorough

# Five mutants of each file, ten minutes on 2 idle cores; SAMPLE=0 takes all, some twenty thousand.
SAMPLE ?= 5
SEED ?= 1
mutation: $(READY)
	$(BIN)/python -m pip install -qq 'cosmic-ray>=8.3'
	mkdir -p build
	$(BIN)/python tests/mutation/mutate.py --sample $(SAMPLE) --seed $(SEED) -o build/mutation.md

# Engines that the package index has, unpacked and not installed. Clone the others into .engines by hand.
engines: $(READY) .engines/.ready
	$(BIN)/kvlockstep engines --profile ci --jobs 2 --misuse --engine-path .engines -o docs/engines.md

.engines/.ready:
	mkdir -p .engines
	$(INSTALL) --editable '.[engine-sources]'
	VLLM_VERSION_OVERRIDE=0.33.0 VLLM_TARGET_DEVICE=empty $(BIN)/python -m pip download -qq --no-deps \
		--no-build-isolation --no-binary vllm --dest .engines vllm==0.33.0
	tar -xzf .engines/vllm-0.33.0.tar.gz -C .engines
	$(BIN)/python -m pip download -qq --no-deps --dest .engines sglang==0.5.23
	$(BIN)/python -m zipfile -e .engines/sglang-0.5.23-*.whl .engines/sglang
	$(BIN)/python -m pip download -qq --no-deps --dest .engines lmcache==0.5.6 ai-dynamo-runtime==1.6.1
	$(BIN)/python -m zipfile -e .engines/lmcache-0.5.6-*.whl .engines/lmcache
	$(BIN)/python -m zipfile -e .engines/ai_dynamo_runtime-1.6.1-*.whl .engines/dynamo
	touch $@

# Hypothesis with CrossHair's symbolic values as its backend; it gates nothing.
symbolic: $(READY)
	$(INSTALL) --editable '.[symbolic]'
	$(BIN)/pytest --override-ini addopts=--import-mode=importlib --hypothesis-profile kvlockstep-symbolic tests/symbolic

$(CORE): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch setuptools
	$(INSTALL) --no-build-isolation --editable '.[torch]'
	touch $@

# A process that runs already found kvlockstep when it began: the gate goes on while this installs it again.
$(READY): $(CORE)
	$(INSTALL) --no-build-isolation --editable '.[torch,test,engines]'
	touch $@

$(CLUSTER): $(READY)
	$(INSTALL) --no-build-isolation --editable '.[cluster,cluster-test]'
	touch $@

clean:
	rm -rf $(VENV) .engines build dist *.egg-info .kvlockstep .hypothesis
