#!/bin/bash
# The whole suite: `bash tests/run.sh`. On a fresh Debian 12 as root it installs what it needs.
#
#   tests/run.sh                 everything; a test that cannot run is a failure
#   tests/run.sh unit            the rootless part, in seconds
#   tests/run.sh KIND [ARG...]   one directory of tests/, with arguments for pytest
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/stages.sh

kind=${1:-all}
lanes=2   # tests run side by side, each process with a switch of its own: more would starve the polling threads. The rootless ones
          # have none and mostly wait, so they run beside these, in a lane of their own
shift || true
pytest=(env --default-signal=INT .venv/bin/python -m pytest -q)   # in the background a shell has SIGINT ignored, which tests send
started=$SECONDS
say() { printf '\n== %s (%ds)\n' "$*" $((SECONDS - started)); }

if [[ $kind == unit ]]; then
    deploy/prepare.sh unit
    exec "${pytest[@]}" -n "$lanes" --dist loadfile tests/unit "$@"
fi
[[ $EUID == 0 ]] || {
    echo "tests/run.sh: needs root for OVS-DPDK, mounts and namespaces; 'tests/run.sh unit' does not" >&2
    exit 1
}
deploy/prepare.sh
make_beds() {
    stage "Debian 13's QEMU and libvirt, unpacked beside this machine's own"
    .venv/bin/python -m tests.lab.guests.trixie >&2
    stage "kernel and initramfs of the virtual machines"
    .venv/bin/python -m tests.lab.guests.guest >&2
    stage_over
}
make_image() {
    stage "the agent's image, from a minimal Debian 12"
    .venv/bin/python -m tests.lab.runtimes.agent_image >&2 && stage_over
}
make_kubernetes() {
    stage "Kubernetes from Debian's source, when this is the first time"
    .venv/bin/python -m tests.lab.cluster.binaries >&2 && stage_over
}
if [[ $kind != all ]]; then
    [[ $kind != kubevirt ]] || make_beds
    [[ $kind != cluster ]] || { make_image; make_kubernetes; }
    exec "${pytest[@]}" "tests/$kind" "$@"
fi

say "style, types, import rules"
stage "ruff"
.venv/bin/ruff check .
.venv/bin/ruff format --check -q .
stage "mypy"
.venv/bin/mypy
stage "lint-imports"
.venv/bin/lint-imports --no-cache >/tmp/userspace-cni-imports.$$ || {
    cat "/tmp/userspace-cni-imports.$$"
    exit 1
}
rm -f "/tmp/userspace-cni-imports.$$"
.venv/bin/python -m tests.lab.house
stage_over

# What the image, the virtual machines and the cluster need is made while other tests run. Those of the machines come last and alone, for
# a guest takes both cores, and so does a cluster; so do those of ping and load, which look at every unix socket of the machine before
# they take a port, and those of the commands in README and docs, ping and load among them
alone=(tests/ovs/test_cli_ping.py tests/ovs/test_cli_load.py tests/cni/test_page_commands.py tests/cluster tests/kubevirt)
beds=/tmp/userspace-cni-beds.$$
((make_image) || :; (make_kubernetes) || :; make_beds) >"$beds" 2>&1 &
beds_made=$!
rootless=/tmp/userspace-cni-rootless.$$
"${pytest[@]}" --durations=10 tests/unit "$@" >"$rootless" 2>&1 &
rootless_done=$!
status=0
say "tests; meanwhile the rootless ones, and what image, cluster and virtual machines need is made"
"${pytest[@]}" -n "$lanes" --dist loadfile --ignore=tests/unit "${alone[@]/#/--ignore=}" --durations=10 "$@" || status=$?
say "the rootless tests, which ran meanwhile"
wait "$rootless_done" || status=$?
cat "$rootless"
rm -f "$rootless"
say "tests that run alone"
stage "waiting for what they need to be made"
wait "$beds_made" || echo "run: it could not be made" >&2
stage_over
cat "$beds" >&2
rm -f "$beds"
"${pytest[@]}" --durations=10 "${alone[@]}" "$@" || status=$?
say "done"
exit "$status"
