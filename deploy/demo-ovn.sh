#!/bin/bash
# Makes OVN's logical network over two nodes by this project's commands, attaches a pod on each, and follows a packet between them;
# half a minute after set-up: `bash deploy/demo-ovn.sh`.
# On a fresh Debian 12, as root, it installs what it needs. All that it makes is its own, and is removed at its end.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."   # absolute: neither a link nor CDPATH leads elsewhere
[[ $EUID == 0 ]] || {
    echo "demo-ovn: needs root for OVS-DPDK, mounts and namespaces" >&2
    exit 1
}
deploy/prepare.sh ovn
exec .venv/bin/python -m deploy.demo_ovn
