#!/bin/bash
# Installs what the demo and the tests need on Debian 12 or newer, and makes the project's virtual environment.
#
#   deploy/prepare.sh            what is missing of OVS-DPDK, DPDK's testpmd, CNI plugins, runtimes, tcpdump, QEMU, libvirt, debootstrap,
#                                compilers, Python; then .venv
#   deploy/prepare.sh demo       without runtimes, QEMU, libvirt, and the compilers of Go and of the fuzzer
#   deploy/prepare.sh unit       only Python, for the rootless tests
#
# It changes no installed package and starts no service: the demo and the tests run a switch of their own.
# Each part that takes long is printed on stderr when it begins, and with its seconds when it is done.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/stages.sh

# have PACKAGE: whether dpkg knows it as installed. Where dpkg cannot say, nothing is installed: what is there might be upgraded.
have() {
    local status=0 known
    known=$(dpkg-query -W -f='${Status}' "$1" 2>/dev/null) || status=$?
    ((status <= 1)) || { echo "prepare: dpkg-query, asked for $1, ended with $status" >&2; exit 1; }
    [[ $known == *'ok installed'* ]]
}

packages=(gcc libc6-dev python3 python3-dev python3-venv)
if [[ ${1:-} != unit ]]; then
    packages+=(musl-tools openvswitch-switch openvswitch-switch-dpdk dpdk-dev containernetworking-plugins iproute2 util-linux procps nftables)
fi
if [[ -z ${1:-} ]]; then
    packages+=(containerd runc podman busybox-static curl iptables tcpdump qemu-system-x86 ipxe-qemu)
    packages+=(libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients libxml2-utils debootstrap)
    packages+=(golang-go openssl)   # the cluster of the tests
    packages+=(ethtool iperf3 iputils-ping jq)   # what tests and pages look at ordinary pods with
    # libFuzzer's runtime comes with the compiler's version, which differs between Debian releases
    [[ $(. /etc/os-release && echo "${VERSION_ID:-}") == 12 ]] && packages+=(clang-14 libclang-rt-14-dev) || packages+=(clang libclang-rt-dev)
fi
missing=()
for package in "${packages[@]}"; do
    have "$package" || missing+=("$package")
done

# without_services COMMAND: run it while package scripts may start no service (Debian policy-rc.d), and put that back.
without_services() {
    local policy=/usr/sbin/policy-rc.d status=0
    if [[ -e $policy ]]; then
        "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    "$@" || status=$?
    rm -f "$policy"
    return "$status"
}

if ((${#missing[@]})); then
    [[ $EUID == 0 ]] || {
        echo "prepare: these packages are missing, and only root can install them: ${missing[*]}" >&2
        exit 1
    }
    command -v apt-get >/dev/null || {
        echo "prepare: this is no Debian (no apt-get); install what corresponds to: ${missing[*]}" >&2
        exit 1
    }
    export DEBIAN_FRONTEND=noninteractive
    stage "bringing apt's lists up to date"
    apt-get update -qq
    stage "installing ${#missing[@]} packages: ${missing[*]}"
    without_services apt-get install -y -qq --no-install-recommends "${missing[@]}" >/tmp/userspace-cni-apt.$$.log 2>&1 || {
        tail -n 20 "/tmp/userspace-cni-apt.$$.log" >&2
        exit 1
    }
    rm -f "/tmp/userspace-cni-apt.$$.log"
    stage_over
fi

# The environment is made anew when its sources have changed.
native=userspace_cni/fastpath shim=userspace_cni/shim
stamp=$(cat pyproject.toml constraints.txt $native/extension.py $native/*/*.cdef $native/*/*.[ch] $shim/*.c | sha256sum | cut -d' ' -f1)
if [[ $(cat .venv/made-from 2>/dev/null) != "$stamp" ]]; then
    [[ -x .venv/bin/python ]] || {
        stage "making .venv"
        /usr/bin/python3 -m venv .venv
    }
    stage "compiling, and installing Python packages into .venv"
    .venv/bin/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
    echo "$stamp" >.venv/made-from
    stage_over
fi
