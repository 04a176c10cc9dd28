#!/bin/bash
# The suite: `bash tests/run.sh`. On a fresh Debian 12 as root it installs what it needs.
#
#   tests/run.sh                 everything; a test that cannot run is a failure
#   tests/run.sh quick           style, types, import and house rules, the rootless tests, a sample of the others
#   tests/run.sh check           style, types, import and house rules
#   tests/run.sh unit [ARG...]   the rootless tests, with arguments for pytest; needs no root
#   tests/run.sh KIND [ARG...]   another directory of tests/
#
# What failed runs once more at the end, alone: what passes then is printed as `flaky: NAME`, and more than three of them are a failure.
# With a KIND nothing runs twice.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-all} in
    unit | check) deploy/prepare.sh unit ;;
    *)
        [[ $EUID == 0 ]] || {
            echo "tests/run.sh: needs root for OVS-DPDK, mounts and namespaces; 'tests/run.sh unit' does not" >&2
            exit 1
        }
        deploy/prepare.sh
        ;;
esac
# Programs inherit which signals are ignored: in the background a shell has SIGINT and SIGQUIT so, and under nohup SIGHUP is. Tests send
# these to programs that they start.
exec env --default-signal .venv/bin/python -m tests.lab.suite "$@"
