#!/bin/sh
# Make .venv in the checkout from a hash lock: `envs/setup.sh runtime` or `envs/setup.sh dev`.
# Takes seconds with uv (fetched from PyPI into .tools), else plain pip. Does nothing when done.
set -eu
cd "$(dirname "$0")/.."
want=${1:-runtime}
case $want in
  runtime) lock=envs/requirements.lock ;;
  dev) lock=envs/requirements-dev.lock ;;
  *) echo "usage: envs/setup.sh [runtime|dev]" >&2; exit 64 ;;
esac

python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null 2>&1 &&
       "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$candidate
      break
    fi
  done
fi
[ -n "$python" ] || {
  echo "error: no Python 3.11 or newer found. Install one (Debian: apt-get install python3) or set PYTHON=/path/to/python3" >&2
  exit 64
}

# The stamp names the lock, the interpreter and the place; a dev environment serves both.
sum=$("$python" - "$want" envs/requirements.lock envs/requirements-dev.lock <<'P'
import hashlib, os, sys
h = hashlib.sha256(f"{sys.version}{os.getcwd()}".encode())
for name in sys.argv[2:]:
    h.update(open(name, "rb").read())
print(h.hexdigest()[:16])
P
)
for stamp in ".venv/.ready-dev-$sum" ".venv/.ready-$want-$sum"; do
  [ -e "$stamp" ] && exit 0
done

echo "setting up .venv ($want) ..." >&2
uv=$(command -v uv || true)
[ -n "$uv" ] || { [ -x .tools/bin/uv ] && uv=.tools/bin/uv; } || true
if [ -z "$uv" ] && "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m pip install -q --disable-pip-version-check --target .tools uv >/dev/null 2>&1 || true
  if [ -x .tools/bin/uv ]; then uv=.tools/bin/uv; fi
fi

# An environment of another interpreter or another place cannot be mended, only made again.
if [ -e .venv ] && [ "$(.venv/bin/python -c 'import sys; print(sys.version, sys.prefix)' 2>/dev/null)" != \
   "$("$python" -c 'import os, sys; print(sys.version, os.path.realpath(".venv"))')" ]; then
  rm -rf .venv
fi
rm -f .venv/.ready-*

if [ -n "$uv" ]; then
  [ -e .venv ] || "$uv" venv -q -p "$python" .venv
  "$uv" pip sync -q -p .venv --require-hashes "$lock"
  "$uv" pip install -q -p .venv --no-deps --no-build-isolation --offline -e .
else
  [ -e .venv/bin/pip ] || { rm -rf .venv; "$python" -m venv .venv 2>/dev/null; } || {
    echo "error: $python has neither pip nor venv. Install one of them, on Debian:  apt-get install -y python3-venv" >&2
    exit 64
  }
  .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r "$lock"
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
fi
touch ".venv/.ready-$want-$sum"
echo "ready: .venv" >&2
