#!/bin/bash
# Installs what tests and demo need on Debian 12 or newer, and makes the project's virtual environment.
#
#   deploy/prepare.sh            what is missing of what all need; then .venv
#   deploy/prepare.sh KIND...    the same for tests of these kinds, directories of tests/ (unit: the rootless ones), or for the demo
#   deploy/prepare.sh --print [KIND...]      only tells the packages
#
# It changes no installed package and starts no service: the demo and the tests run a switch of their own.
# Each part that takes long is printed on stderr when it begins, and with its seconds when it is done.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."   # absolute: neither a link nor CDPATH leads elsewhere
source deploy/stages.sh

# have PACKAGE: whether dpkg knows it as installed. Where dpkg cannot say, nothing is installed: what is there might be upgraded.
have() {
    local status=0 known
    known=$(dpkg-query -W -f='${Status}' "$1" 2>/dev/null) || status=$?
    ((status <= 1)) || { echo "prepare: dpkg-query, asked for $1, ended with $status" >&2; exit 1; }
    [[ $known == *'ok installed'* ]]
}

# What the programs come from that a kind's tests start, in their own process, a lab's or a page's. Every kind needs what makes .venv,
# the same for all; libFuzzer's runtime comes with the compiler's version, which differs between Debian releases.
python="gcc git libc6-dev musl-tools openssl python3 python3-dev python3-venv"
switch="containernetworking-plugins ethtool iproute2 iputils-ping librte-meta-mempool nftables openvswitch-switch openvswitch-switch-dpdk procps util-linux"
guests="busybox-static ipxe-qemu libvirt-clients libvirt-daemon libvirt-daemon-driver-qemu libxml2-utils qemu-system-x86"
libraries="libcurl3-gnutls libglib2.0-0 libpsl5 libreadline8 libselinux1"   # of the NetworkManager that is unpacked for the guest
[[ $(. /etc/os-release && echo "${VERSION_ID:-}") == 12 ]] && fuzzer="clang-14 libclang-rt-14-dev" || fuzzer="clang libclang-rt-dev"
declare -A needed=(
    [unit]="$python"
    [browser]="$python $switch chromium fonts-dejavu-core fonts-liberation poppler-utils"
    [demo]="$python $switch dpdk-dev"
    [guest]="$python $switch $libraries dbus dpdk-dev kmod tcpdump udev"
    [host]="$python $switch runc tcpdump"
    [ovs]="$python $switch dpdk-dev iperf3 iptables tcpdump"
    [ovn]="$python $switch ovn-central ovn-host"
    [cni]="$python $switch bash-completion curl dpdk-dev fish jq man-db mandoc tcpdump zsh"
    [agent]="$python $switch dpdk-dev prometheus"
    [crash]="$python $switch"
    [native]="$python $switch $fuzzer dpdk-dev ipxe-qemu qemu-system-x86"
    [runtimes]="$python $switch busybox-static containerd debootstrap dpdk-dev iptables podman runc"
    [kubevirt]="$python $switch $guests"
    [cluster]="$python $switch busybox-static containerd debootstrap dpdk-dev golang-go iptables podman runc"
)
print=
[[ ${1:-} != --print ]] || { print=yes; shift; }
wanted=
for kind in "${@:-"${!needed[@]}"}"; do
    [[ -n $kind && -n ${needed[$kind]:-} ]] || {
        echo "prepare: there is no kind '$kind': $(printf '%s\n' "${!needed[@]}" | sort | xargs)" >&2
        exit 2
    }
    wanted+=" ${needed[$kind]}"
done
mapfile -t packages < <(tr ' ' '\n' <<<"$wanted" | sort -u | grep .)
[[ -z $print ]] || { printf '%s\n' "${packages[@]}"; exit; }
missing=()
for package in "${packages[@]}"; do
    have "$package" || missing+=("$package")
done

# alone DESCRIPTOR: wait until no other run holds the directory that is open at this descriptor, and hold it.
alone() {
    flock --nonblock "$1" || { echo "prepare: waiting for another run of it" >&2; flock "$1"; }
}

# without_services COMMAND: run it while package scripts may start no service (Debian policy-rc.d), and put that back, also when this
# is told to end, once the command has ended. The caller holds the lock at descriptor 9: of two runs at once one would take away what
# the other needs. A file that a killed run has left is known by its mark.
without_services() (
    policy=/usr/sbin/policy-rc.d mark="# made by deploy/prepare.sh of userspace-cni, which removes it"
    if [[ -e $policy ]] && ! grep -qxF "$mark" "$policy"; then
        "$@" 9<&-
        exit
    fi
    trap 'rm -f "$policy"' EXIT
    trap 'exit 143' HUP INT TERM
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy" && chmod 755 "$policy" && "$@" 9<&-
)

# What apt and pip do now, for `followed`: which package, of how many.
declare -A counted=()
files=0
of_apt() {   # dlstatus:NUMBER:PERCENT:TEXT and pmstatus:PACKAGE:PERCENT:TEXT, as "Retrieving file 3 of 60 (2s remaining)", "Unpacking zsh (amd64)"
    local kind package percent what verb
    IFS=: read -r kind package percent what <<<"$1"
    case $kind in
        dlstatus)
            text="fetching ${what#Retrieving }"
            text=${text% (*}
            [[ ! $text =~ of\ ([0-9]+)$ ]] || files=${BASH_REMATCH[1]}
            ;;
        pmstatus)
            verb=${what%% *}
            [[ $verb == Unpacking || $verb == Configuring ]] || return 0
            [[ -n ${counted[$verb $package]:-} ]] || counted[$verb $package]=yes counted[$verb]=$((${counted[$verb]:-0} + 1))
            text="${verb,} package ${counted[$verb]}$( ((!files)) || echo " of $files"): ${package%:*}"
            ;;
    esac
}

of_pip() {
    local name
    case $1 in
        Collecting\ * | Processing\ *.whl*)
            counted[pip]=$((${counted[pip]:-0} + 1))
            name=${1#* } name=${name%% *} name=${name##*/}
            text="fetching package ${counted[pip]} of $(grep -c == constraints.txt): ${name%%[<>=!~;[-]*}"
            ;;
        *Installing\ build\ dependencies*) text="fetching the tools that compile" ;;
        *Preparing\ editable* | *Building\ editable*) text="compiling" ;;
        Installing\ collected*) text="unpacking the packages" ;;
    esac
}

install_packages() {
    apt-get install -y -qq --no-install-recommends -o APT::Status-Fd=3 "${missing[@]}" >/tmp/userspace-cni-apt.$$.log 2>&1
}

install_python() {
    .venv/bin/pip install --disable-pip-version-check -c constraints.txt -e '.[dev,docs]' >&3
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
    followed of_apt apt-get update -qq -o APT::Status-Fd=3
    exec 9</usr/sbin
    alone 9
    stage "installing ${#missing[@]} packages: ${missing[*]}"
    followed of_apt without_services install_packages || {
        tail -n 20 "/tmp/userspace-cni-apt.$$.log" >&2
        exit 1
    }
    exec 9<&-
    rm -f "/tmp/userspace-cni-apt.$$.log"
    stage_over
fi

# The environment is made anew when its sources have changed; by one run at a time.
exec 8<.
alone 8
fastpath=userspace_cni/fastpath linux=userspace_cni/linux shim=userspace_cni/shim
stamp=$(cat pyproject.toml constraints.txt $fastpath/extension.py $fastpath/*/*.cdef $fastpath/*/*.[ch] $linux/*.cdef $linux/*.[ch] $shim/*.c | sha256sum | cut -d' ' -f1)
if [[ $(cat .venv/made-from 2>/dev/null) != "$stamp" ]]; then
    [[ -x .venv/bin/python ]] || {
        stage "making .venv"
        /usr/bin/python3 -m venv .venv
    }
    stage "compiling, and installing Python packages into .venv"
    followed of_pip install_python
    echo "$stamp" >.venv/made-from
    stage_over
fi
