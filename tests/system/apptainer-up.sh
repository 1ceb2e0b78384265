#!/usr/bin/env bash
# Real Apptainer from Debian sid's packages on Debian 12, with its own C library beside it:
# nothing of the system is replaced. Usage: APPTAINER_ROOT=FOLDER apptainer-up.sh; prints the
# program's path. Needs root (it sets no link outside FOLDER). Sid moves, so this can fail: the
# tests that need it are then skipped with the reason.
set -euo pipefail
root=${APPTAINER_ROOT:?a private folder}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=$root/usr/bin/apptainer
if [ -x "$program" ] && "$program" --version >/dev/null 2>&1; then
  echo "$program"
  exit 0
fi
command -v patchelf >/dev/null && command -v mksquashfs >/dev/null || {
  echo "patchelf and squashfs-tools are needed" >&2
  exit 1
}
rm -rf "$root"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$root/libs"
sources=$(grep -hl '^Suites:.*bookworm' /etc/apt/sources.list.d/*.sources | head -1)
mirror=$(awk '/^URIs:/{print $2; exit}' "$sources")
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sid.list"
apt() {
  apt-get -o Dir::Etc::sourcelist="$work/sid.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" \
    -o APT::Sandbox::User=root "$@"
}
apt update -q >/dev/null
(cd "$work" && apt download apptainer libc6 libseccomp2 libsqlite3-0 >/dev/null)
dpkg-deb -x "$work"/apptainer_*.deb "$root"
for name in libc6 libseccomp2 libsqlite3-0; do
  dpkg-deb -x "$work"/${name}_*.deb "$root/libs"
done
libs=$root/libs/usr/lib/x86_64-linux-gnu
# RPATH, not RUNPATH: libsqlite3 itself needs the new libm.
for binary in "$program" "$root/usr/lib/x86_64-linux-gnu/apptainer/bin/starter"; do
  patchelf --set-interpreter "$libs/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libs" "$binary"
done
# Apptainer finds its settings relative to its own path.
ln -sfn ../etc "$root/usr/etc"
ln -sfn ../var "$root/usr/var"
ln -sfn ../../var "$root/usr/lib/var"
ln -sfn ../../etc "$root/usr/lib/etc"
"$program" --version >&2
echo "$program"
