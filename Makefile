# The one command vocabulary of tensorlease. People and CI call the same targets.
#
#   make build    virtual environment, packages, native module       make lint     everything that reads the code
#   make demo     a short tour with figures, into out/               make mutants  break the code on purpose; the tests must notice
#   make test     every test                                         make bench    measure reads; slow, wants a quiet machine
#   make faults   random programs over engines that fail             make bench-compare  beside TransferQueue as released

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

export CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TERM_COLOR ?= never
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
unexport PYTHONPATH

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FUZZ_SECONDS ?= $(if $(filter true,$(CI)),60,10)
BENCH_OUT ?= out/bench
DEMO_ARGS ?=
CRATES := tensorlease-arena tensorlease-memory tensorlease-engine tensorlease-host tensorlease
PACKAGES := $(addprefix -p ,$(CRATES))
# Not --all-features: `poison` links only under AddressSanitizer.
TEST_FEATURES := --features tensorlease-engine/conformance

RUST_SOURCES := $(shell find crates/*/src crates/*/Cargo.toml python/src python/Cargo.toml Cargo.toml Cargo.lock -name '*.rs' -o -name 'Cargo.*' 2>/dev/null)
PACKAGE_STAMP := $(VENV)/.packages.stamp
MODULE_STAMP := $(VENV)/.module.stamp
QUEUE_STAMP := $(VENV)/.queue.stamp

FAULTS_ARGS ?=

.PHONY: build wheel test-wheel demo demo-mooncake faults test-rdma test-rdma-transfer-queue test-transfer-queue example-transfer-queue test lint mutants bench bench-compare bench-host bench-transfer-queue figures help clean docs fuzz soak
.PHONY: test-rust test-doc test-loom test-asan test-python test-examples lint-rust lint-python lint-tidy lint-deny

help:
	@sed -n '3,6p' Makefile | cut -c3-
	@echo '  also: wheel test-wheel demo-mooncake test-rdma test-rdma-transfer-queue test-transfer-queue example-transfer-queue bench-host bench-transfer-queue figures test-rust test-doc test-loom test-asan test-python test-examples fuzz soak docs clean'

# ---- build ----------------------------------------------------------------------------------------------------------

build: $(MODULE_STAMP)

$(PACKAGE_STAMP): requirements-dev.txt requirements-mooncake.txt scripts/prerequisites.sh
	PYTHON="$(PYTHON)" scripts/prerequisites.sh
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --requirement requirements-mooncake.txt || \
		echo 'make build: no Mooncake for this machine; the tests of mooncake:// are skipped'
	touch $@

# The Python files are used where they stand, so only a change of Rust or of the package's metadata builds anything.
$(MODULE_STAMP): $(PACKAGE_STAMP) $(RUST_SOURCES) python/pyproject.toml
	VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(BIN)/maturin develop --release --quiet --features test-hooks --manifest-path python/Cargo.toml
	$(BIN)/python -c 'import tensorlease'
	touch $@

# One wheel for every Python from 3.11 on, in dist/. It has no features: nothing that only tests call is in it.
wheel: $(PACKAGE_STAMP)
	rm -rf dist
	$(BIN)/maturin build --release --quiet --locked --auditwheel check --manifest-path python/Cargo.toml --out dist
	ls -l dist

# ---- use ------------------------------------------------------------------------------------------------------------

demo: build
	mkdir -p out
	$(BIN)/python -m bench demo --out out/ $(DEMO_ARGS)

# A master and three processes on loopback ports of their own, stopped at the end.
demo-mooncake: build
	$(BIN)/python -m bench demo-mooncake $(DEMO_ARGS)

# BENCH_OUT keeps every report; the one of pinned reads is what README.md's table is made from.
bench: build
	scripts/bench.sh $(BIN)/python $(BENCH_OUT)

# Beside the TransferQueue client as released, from PyPI; about 40 minutes on a quiet machine.
bench-compare: build $(QUEUE_STAMP)
	scripts/bench_compare.sh $(BIN)/python $(BENCH_OUT)

# What one arena for a host is worth, beside a memcpy, Ray's object store and TransferQueue's SimpleStorage; about 8 minutes on a quiet machine.
bench-host: build $(QUEUE_STAMP)
	scripts/bench_host.sh $(BIN)/python $(BENCH_OUT)

# The "Small" case of TransferQueue's own performance script, with its released client and with ours; wants a quiet machine.
bench-transfer-queue: build $(QUEUE_STAMP)
	mkdir -p $(BENCH_OUT)
	$(BIN)/python -m bench.transfer_queue_small --json $(BENCH_OUT)/transfer-queue-small.json --check

$(QUEUE_STAMP): requirements-transfer-queue.txt $(PACKAGE_STAMP)
	$(BIN)/python -m pip install --quiet --requirement requirements-transfer-queue.txt
	touch $@

# Makes README.md's table and its chart those of the last `make bench`.
figures: $(PACKAGE_STAMP)
	mkdir -p docs/benchmarks
	cp $(BENCH_OUT)/*.json $(BENCH_OUT)/*.png docs/benchmarks/
	$(BIN)/python scripts/figures.py

# ---- test -----------------------------------------------------------------------------------------------------------

test:
	+MAKE="$(MAKE)" scripts/test_all.sh test-rust test-doc test-loom test-asan fuzz test-examples test-python

test-rust:
	scripts/cargo_test.sh $(PACKAGES) $(TEST_FEATURES)

test-doc:
	cargo test --quiet --doc $(PACKAGES) $(TEST_FEATURES)

test-loom:
	scripts/loom.sh

test-asan:
	scripts/asan.sh

fuzz:
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz.sh

# The wheel in new environments without Rust; pip asks the index for numpy.
test-wheel: wheel
	PYTHON=$(BIN)/python scripts/test_wheel.sh

test-examples: build
	PYTHON=$(BIN)/python scripts/examples.sh

test-python: build
	scripts/test_python.sh

# Reads, writes and drops for a long time with checks on memory held; not part of `make test`.
soak: build
	cd python && TENSORLEASE_SOAK=1 ../$(BIN)/python -m pytest -m soak --timeout=0

# Random programs over engines that fail, for minutes; part of `make test` in a short form. docs/testing.md says how to replay one.
faults:
	scripts/faults.sh $(FAULTS_ARGS)

# Real verbs in a virtual machine with a software RDMA device: docs/rdma.md.
test-rdma: build
	scripts/test_rdma.sh --ignore-glob='*test_transfer_queue.py'

# TransferQueue's client there: torch takes minutes to import in that machine.
test-rdma-transfer-queue: build $(QUEUE_STAMP)
	scripts/test_rdma.sh -k test_transfer_queue

# TransferQueue's MooncakeStore backend over tensorlease, beside the released one, with Ray: docs/transfer_queue.md.
test-transfer-queue: example-transfer-queue
	cd python && ../$(BIN)/python -m pytest tests/transfer_queue

# One Ray job: a producer and two consumer ranks.
example-transfer-queue: build $(QUEUE_STAMP)
	PYTHONPATH=$(CURDIR) $(BIN)/python examples/transfer_queue/job.py

# ---- lint -----------------------------------------------------------------------------------------------------------

lint: lint-rust lint-python lint-tidy lint-deny

lint-rust:
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings
	cargo clippy --quiet -p tensorlease-python -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --quiet --no-deps $(PACKAGES) --all-features

lint-python: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd python && ../$(BIN)/mypy
	$(BIN)/mypy --strict scripts/*.py
	$(BIN)/mypy --config-file python/pyproject.toml -p bench
	cd python && ../$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml tensorlease._core
	cd python && ../$(BIN)/python -m pytest --collect-only -qqq

lint-tidy: build
	$(BIN)/python scripts/tidy.py
	$(BIN)/python scripts/api_page.py --check
	$(BIN)/python -m pytest --quiet --config-file=/dev/null --rootdir=scripts -p no:cacheprovider -p no:asyncio scripts

lint-deny:
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --offline check bans licenses sources; \
	else echo 'lint-deny: cargo-deny is not installed; deny.toml was not checked (cargo install cargo-deny)'; fi

# ---- the rest -------------------------------------------------------------------------------------------------------

# Some mutants are of Python code over TransferQueue.
mutants: build $(QUEUE_STAMP)
	$(BIN)/python scripts/mutants.py

docs:
	RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps $(PACKAGES) --all-features
	@echo "open $(CARGO_TARGET_DIR)/doc/tensorlease/index.html"

clean:
	rm -rf target $(VENV) out build dist
	find python -name '__pycache__' -o -name '*.so' | xargs rm -rf
