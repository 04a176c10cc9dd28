"""The commands of README and docs as they are written, in the order of the page, each page on a node of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.node.fresh_machine import ENTER, MACHINE, NEVER_STARTED
from tests.lab.pages import PAGES, ROOT, blocks, named
from tests.lab.samples import TRACING, check_page, printed_by, samples, traced
from tests.lab.switch.switch import SCRIPT
from userspace_cni.controller.controller_metrics import ControllerMetrics

pytestmark = pytest.mark.timeout(300)

README = PAGES[0]
COMMANDS, OPERATIONS, NETWORK, METRICS, SWITCH, PORTS, LIMITS, GATEWAYS, ROUTES = (
    ROOT / "docs" / f"{name}.md"
    for name in ("commands", "operations", "network", "metrics", "ovs-dpdk", "ports", "limits", "node-network", "routes")
)
ELSEWHERE = {
    ROOT / "docs" / "kubevirt-by-hand.md": ROOT / "tests" / "kubevirt" / "test_walkthrough.py",
    ROOT / "docs" / "quick-start.md": ROOT / "tests" / "cluster" / "test_quick_start.py",
}
"""Pages that other tests run, because they need more than these nodes have."""
WITH_COMMANDS = [page for page in PAGES if any(block.is_run for block in blocks(page)) and page not in ELSEWHERE]
OF_PORTS = r"port_[rt]x_(packets|bytes|dropped|errors)_total|socket_dead"
SILENT = rf"userspace_cni_({OF_PORTS}|device_bridges|dra_registered|slice_devices|routes?_\w+|controller_ovn_\w+)"
"""Metrics that these nodes do not have: of a port without an application, of devices, of routes in pods; and of a controller with
OVN, which tests/ovn compares with the page."""
SECONDS = 240
"""For what takes 20 s on a quiet machine."""
SMALL_SWITCH = {"PRIVATE_SWITCH_PAGES": "384", "PRIVATE_SWITCH_SOCKET_MEM": "128"}

# What all other pages but the README speak of: a node with the plugin, an agent, and three pods of one network.
NODE = """
export PATH=/opt/userspace-cni/bin:$PATH OVS_RUNDIR=$(mktemp -d) CNI_PATH=/opt/cni/bin
deploy/private-switch start $OVS_RUNDIR
export USERSPACE_CNI_OVSDB=unix:$OVS_RUNDIR/db.sock USERSPACE_CNI_SWITCH_NETNS=$OVS_RUNDIR/netns
userspace-cni install --bin-dir /opt/cni/bin
userspace-cni agent 2> agent.log &
until userspace-cni agent probe readyz > /dev/null; do sleep 0.1; done
echo '{"cniVersion": "1.0.0", "name": "blue", "plugins": [{"type": "userspace"}]}' > /etc/cni/net.d/blue.conflist
number=0
for pod in dpdk-app a b; do
    uid=00000000-0000-0000-0000-00000000000$((++number))
    mkdir -p /var/lib/kubelet/pods/$uid/volumes/kubernetes.io~empty-dir/shared-dir
    ip netns add $pod
    echo '{"cniVersion": "1.1.0", "name": "dpdk-net", "type": "userspace"}' |
        CNI_COMMAND=ADD CNI_CONTAINERID=c0ffee$number CNI_NETNS=/run/netns/$pod CNI_IFNAME=net1 \\
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=$pod;K8S_POD_UID=$uid" /opt/cni/bin/userspace
done
"""

# For the pages on commands and on running it: one of the pods has an application, as which a link of the kernel is enough.
WITH_APPLICATION = (
    NODE
    + """
ip netns exec dpdk-app userspace-cni tap --name net1 \\
    /var/lib/kubelet/pods/00000000-0000-0000-0000-000000000001/volumes/kubernetes.io~empty-dir/shared-dir/c0ffee1-net1 &
until userspace-cni list dpdk-app | grep -q ' up  *connected '; do sleep 0.1; done
"""
)

# What pages on kernel links and limits speak of: an ordinary pod, too. The switch of a test has a network namespace of its own,
# in which host ends are; elsewhere that is the node's, so the pages do not enter it.
WITH_WEB = (
    NODE
    + """
at_switch() { nsenter --net=$OVS_RUNDIR/netns "$@"; }
ip() { at_switch ip "$@"; }
nft() { at_switch nft "$@"; }
tc() { at_switch tc "$@"; }
sysctl() { at_switch sysctl "$@"; }
command ip netns add web
echo '{"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "host": {"iftype": "veth", "port": "system"},
    "bandwidth": {"ingressRate": 100000000, "egressRate": 50000000},
    "ipam": {"type": "static", "addresses": [{"address": "192.0.2.7/24", "gateway": "192.0.2.1"}]}}' |
    CNI_COMMAND=ADD CNI_CONTAINERID=c0ffee4 CNI_NETNS=/run/netns/web CNI_IFNAME=eth0 \\
    CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web" /opt/cni/bin/userspace
"""
)

BEGINNINGS = {
    README: "",
    SWITCH: NEVER_STARTED,
    **dict.fromkeys((COMMANDS, OPERATIONS), WITH_APPLICATION),
    **dict.fromkeys((METRICS, PORTS, LIMITS, GATEWAYS), WITH_WEB),
}
"""How nodes differ for pages that do not begin on a node with the plugin and three pods."""


@pytest.fixture
def room() -> Iterator[Path]:
    """Where pages make their directories. If a page leaves a switch there, its hugepages are given back."""
    with TemporaryDirectory(prefix="uc-") as directory:
        yield Path(directory)
        for mark in Path(directory).glob("*/.private-switch"):
            subprocess.run([SCRIPT, "stop", mark.parent], check=True)


def network() -> str:
    """The network to copy, as a file."""
    [found] = [block.text for block in blocks(NETWORK) if "NetworkAttachmentDefinition" in block.text]
    return found


def run(room: Path, page: Path) -> tuple[dict[str, str], str]:
    """Run the page's commands and return what they printed, as `printed_by` does, "" for what is attached then; and stderr.

    AssertionError with all of it if one fails.
    """
    script = room / "commands.sh"
    steps = [traced(block) for block in blocks(page) if block.is_run]
    beginning = [MACHINE, BEGINNINGS.get(page, NODE), "cat > net.yaml <<'END'\n", network(), "END\n", TRACING]
    script.write_text("".join([*beginning, *steps, "trace ''\nuserspace-cni list 2>&1 || test $? = 1\n"]))
    with (room / "stderr").open("w+") as stderr:
        done = subprocess.run(
            [*ENTER, "bash", "-e", "-o", "pipefail", script],
            cwd=room,
            env={"PATH": os.environ["PATH"], "TMPDIR": str(room), "LC_ALL": "C.UTF-8", **SMALL_SWITCH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        stderr.seek(0)
        warned = stderr.read()
    logs = [log.read_text() for log in room.glob("clone/agent.log")]
    assert done.returncode == 0, "\n".join([done.stdout, warned, *logs])
    return printed_by(done.stdout), warned


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=named)
def test_every_command_of_the_page_succeeds(room: Path, page: Path) -> None:
    """The page's blocks of commands end as it says, in order in one shell, detach what they attached, and print the samples."""
    printed, warned = run(room, page)
    attached = printed.pop("")
    told = {block: printed[block.place] for block in blocks(page) if block.is_run}
    assert "Traceback" not in "".join([*told.values(), warned])
    if page not in (README, SWITCH):
        assert re.findall(r"^default/([\w-]+) +net1 ", attached, re.MULTILINE) == ["a", "b", "dpdk-app"]
    else:
        assert "no attachments on this node" in attached
    if page == README:
        [added] = [text for block, text in told.items() if "CNI_COMMAND=ADD" in block.text]
        result = json.loads(added[added.index("{") : added.rindex("}") + 1])
        assert result["interfaces"][0]["name"] == "net1"
        assert "level=warning" not in warned
        assert "demo0001" in "".join(text for block, text in told.items() if "userspace-cni list" in block.text)
    if page == SWITCH:
        assert 'true\n"DPDK ' in "".join(told.values())
        assert re.search(r"^br0 +forwards ", "".join(told.values()), re.MULTILINE)
    if page == ROUTES:
        *_, applied, given_back = told.values()
        default = r"^default via \S+ dev (\w+) proto (\w+) ?$"
        assert re.findall(default, applied, re.MULTILINE) == [("eth1", "148"), ("eth0", "static")]
        assert re.findall(default, given_back, re.MULTILINE) == [("eth0", "static")]
    if page == METRICS:
        [exposed] = told.values()
        known, of_controller = map(
            names_in, (exposed, ControllerMetrics(lambda: False, {"provider-networks": lambda: 0.0}).render().decode())
        )
        written = set(re.findall(r"userspace_cni_\w+", page.read_text()))
        assert {name for name in written - known - of_controller if not re.fullmatch(SILENT, name)} == set()
        assert {name for name in known - written if not name.endswith("_created")} == set()
    check_page(page, printed)


def names_in(exposed: str) -> set[str]:
    """The names of the metrics in this text."""
    return set(re.findall(r"^# TYPE (userspace_cni_\w+) (?:gauge|counter|histogram)$", exposed, re.MULTILINE))


@pytest.mark.parametrize("page", ELSEWHERE, ids=named)
def test_other_pages_are_run_elsewhere(page: Path) -> None:
    """A page whose commands are not run here has a test that names it, and compares its samples."""
    assert page.name in ELSEWHERE[page].read_text()
    assert not samples(page) or "lab.samples" in ELSEWHERE[page].read_text()
