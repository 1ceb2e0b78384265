#!/bin/sh
# Resolve pyproject.toml into the two hash locks. Run after a change of dependencies.
set -eu
cd "$(dirname "$0")/.."
lock() { .tools/bin/uv pip compile -q --generate-hashes --no-emit-index-url --no-header --universal \
  -p 3.11 --extra build "$@"; }
lock pyproject.toml -o envs/requirements.lock
lock --extra dev pyproject.toml -o envs/requirements-dev.lock

# The conda environment takes the same exact versions of what pyproject.toml names.
.venv/bin/python envs/conda.py
