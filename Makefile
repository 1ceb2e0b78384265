# Every target does its own set-up into .venv/ from a bare Python 3.11+ machine.
SHELL := /bin/sh
BIN := .venv/bin
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help venv study test test-system check bench docs clean

help:
	@echo "make venv         only the environment, in .venv/"
	@echo "make study        the whole study against the emulator; report in results/emulated/report/"
	@echo "make test         unit, laws, golden, workflow tests (no root, no services)"
	@echo "make test-system  tests with real parts: registry, Apptainer, browser, ... (root, Debian)"
	@echo "make check        format, lint, types, import contract, spelling, Snakemake lint"
	@echo "make bench        benchmarks, side by side in one run"
	@echo "make docs         print the generated documents again"

venv:
	@sh envs/setup.sh runtime

study: venv
	@$(BIN)/kvstudy watch --backend emulated -- $(BIN)/snakemake --profile profiles/local

test:
	@sh envs/setup.sh dev
	@$(BIN)/python -m pytest -q -m "not system"

test-system:
	@sh envs/setup.sh dev
	@$(BIN)/python -m pytest -q -m system tests/system

check:
	@sh envs/setup.sh dev
	@$(BIN)/ruff format --check src tests benchmarks
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/snakefmt --check Snakefile rules
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md config.yaml docs src rules report/templates profiles envs/*.sh
	@sh envs/lint-workflow.sh

bench:
	@sh envs/setup.sh dev
	@$(BIN)/python benchmarks/run.py

docs:
	@sh envs/setup.sh dev
	@$(BIN)/python -m kvstudy.report.docs docs

clean:
	rm -rf .venv .tools .snakemake
