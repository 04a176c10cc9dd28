#!/bin/bash
# The suite: `bash tests/run.sh`. On a fresh Debian 12 as root it installs what it needs.
#
#   tests/run.sh                 everything; a test that cannot run is a failure
#   tests/run.sh quick           style, types, import and house rules, the rootless tests, a sample of the others
#   tests/run.sh changed [--list] [BASE]  what the change since BASE can reach, else since the branch left main: it says which test files,
#                                and why; with --list it does no more
#   tests/run.sh check           style, types, import and house rules
#   tests/run.sh unit [ARG...]   the rootless tests, with arguments for pytest; needs no root
#   tests/run.sh KIND [ARG...]   another directory of tests/
#   tests/run.sh lane NAME [ARG...]  the tests of plugin, agent, switch and containerd and the demo on the programs of another Debian release
#                                (their names: tests/lab/lanes/table.py), which is kept in docs/compatibility.md; with arguments, pytest there
#   tests/run.sh judge [PATTERN] Kubernetes' own end-to-end cases of networks on a cluster whose pods have OVN's network; the result is
#                                kept in docs/kubernetes-cases.md. With a regular expression only the cases in whose names it is found
#
# What failed runs once more at the end, alone: what passes then is printed as `flaky: NAME`, and more than three of them are a failure.
# With a KIND nothing runs twice.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."   # absolute: neither a link nor CDPATH leads elsewhere
unset PYTHONDONTWRITEBYTECODE   # where it is set, each of thousands of interpreters compiles the program anew
deploy/prepare.sh unit   # the rest is installed once it is known which tests run
# Programs inherit which signals are ignored: in the background a shell has SIGINT and SIGQUIT so, and under nohup SIGHUP is. Tests send
# these to programs that they start.
exec env --default-signal .venv/bin/python -m tests.lab.suite "$@"
