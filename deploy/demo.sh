#!/bin/bash
# Attaches pods by plugin and agent, shows their frames, kills an agent; half a minute after set-up: `bash deploy/demo.sh`.
# On a fresh Debian 12, as root, it installs what it needs. All that it makes is its own, and is removed at its end.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."   # absolute: neither a link nor CDPATH leads elsewhere
[[ $EUID == 0 ]] || {
    echo "demo: needs root for OVS-DPDK, mounts and namespaces" >&2
    exit 1
}
deploy/prepare.sh demo
exec .venv/bin/python -m deploy.demo
