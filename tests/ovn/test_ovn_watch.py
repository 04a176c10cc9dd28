"""`userspace-cni ovn watch` as a process: it keeps logical ports until SIGTERM, and after SIGKILL another one does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.dashboards import alert_queries, exposed, shown_queries
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.ovn.database import Authority, NorthboundDatabase
from tests.lab.ovn.switch_database import SwitchDatabase
from tests.lab.switch.switch import wait_until

COUNT = 60
SECRETS = ("first-word-of-the-lab", "other-word-of-the-lab")
COMMAND = ("-m", "userspace_cni", "ovn", "watch")
FORMER = ("-c", "import sys; from userspace_cni.cli.former_tools import run_watcher; sys.exit(run_watcher())", "--overlay")
Watch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.add(node("n1"))
        yield started


@pytest.fixture
def northbound() -> Iterator[NorthboundDatabase]:
    """A database with the switch of one node."""
    with (
        TemporaryDirectory(prefix="nb-") as directory,
        NorthboundDatabase(Path(directory), Authority(Path(directory) / "ca")) as served,
    ):
        served.nbctl("ls-add", "n1", "--", "set", "logical_switch", "n1", "other_config:subnet=192.168.1.0/24")
        yield served


@pytest.fixture
def watch(api: ApiServer, northbound: NorthboundDatabase, tmp_path: Path) -> Iterator[Watch]:
    """Starts the command, and kills it at the end."""
    made: list[subprocess.Popen[str]] = []
    settings = {
        "USERSPACE_CNI_OVN_NB": northbound.remote("unix"),
        "USERSPACE_CNI_KUBECONFIG": api.kubeconfig(tmp_path),
        "USERSPACE_CNI_CONTROLLER_NAMESPACE": "system",
    }

    def start(*options: str, program: Sequence[str] = COMMAND, **more: str) -> subprocess.Popen[str]:
        argv = [sys.executable, *program, *options]
        made.append(subprocess.Popen(argv, env=os.environ | settings | more, stderr=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for each in made:
        each.kill()
        each.communicate()


def add_pods(api: ApiServer, first: int, count: int) -> None:
    for number in range(first, first + count):
        api.add_pod({"metadata": {"name": f"p{number}"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}})


def noted(api: ApiServer, name: str) -> str:
    """The address that the pod's annotation says; "" for none."""
    text = api.annotations("default", name).get("ovn")
    return str(json.loads(text)["ip_address"]) if text else ""


@pytest.mark.parametrize("program", [COMMAND, FORMER], ids=["command", "former"])
def test_it_watches_until_sigterm(api: ApiServer, watch: Watch, program: Sequence[str]) -> None:
    """It gives its Lease back, and exits with 0; also under the name of OVN's first tools."""
    running = watch(program=program)
    add_pods(api, 0, 1)
    wait_until(lambda: noted(api, "p0"), what="the annotation")
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
    assert api.objects("leases.coordination.k8s.io").get("system", "userspace-cni-ovn")["spec"]["holderIdentity"] == ""


def test_the_metrics_of_dashboards(watch: Watch) -> None:
    """It serves every metric of OVN that a panel or an alert names."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    watch(USERSPACE_CNI_METRICS_LISTEN=address)

    def scrape() -> str:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            return str(answer.read().decode())
        return ""

    wait_until(lambda: "userspace_cni_controller_ovn_lock 1" in scrape(), what="the lock")
    named = {name for query in (*shown_queries(), *alert_queries()) for name in query.metrics() if "_controller_ovn_" in name}
    assert named
    wait_until(lambda: named <= set(exposed(scrape())), what=f"all of {named}")


@pytest.mark.parametrize("is_secured", [False, True], ids=["http", "https"])
def test_the_account_of_the_switch(northbound: NorthboundDatabase, watch: Watch, tmp_path: Path, is_secured: bool) -> None:
    """Without another one external_ids of Open_vSwitch say it, as the first tools have it; a token that is refused is read again
    there, and none is logged."""
    with (
        TemporaryDirectory(prefix="sw-") as directory,
        SwitchDatabase(Path(directory)) as switch,
        ApiServer(SECRETS[0], tmp_path if is_secured else None) as api,
    ):
        api.add(node("n1"))
        server = api.url if is_secured else api.url.removeprefix("http://")
        ids = {"k8s-api-server": server, "k8s-api-token": SECRETS[0]}
        if api.certificate:
            ids["k8s-ca-certificate"] = api.certificate.read_text().replace("\n", "\\n")
        switch.write_ids(ids)
        over = {
            "USERSPACE_CNI_KUBECONFIG": "",
            "USERSPACE_CNI_OVSDB": switch.remote,
            "USERSPACE_CNI_HOST_ROOT": "/",
            "USERSPACE_CNI_LOG_LEVEL": "debug",
        }
        running = watch(program=FORMER, **over)
        add_pods(api, 0, 1)
        wait_until(lambda: noted(api, "p0"), what="the annotation")
        api.token = SECRETS[1]
        switch.write_ids({"k8s-api-token": SECRETS[1]})
        add_pods(api, 1, 1)
        wait_until(lambda: noted(api, "p1"), what="the annotation that needs the other token")
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
        assert running.returncode == 0
        assert "the controller starts" in said
        assert [each for each in SECRETS if each in said] == []


def test_a_server_of_the_switch_that_cannot_be(watch: Watch) -> None:
    """It is refused before anything is asked of it, without its text, which can hold a password."""
    with TemporaryDirectory(prefix="sw-") as directory, SwitchDatabase(Path(directory)) as switch:
        over = {"USERSPACE_CNI_KUBECONFIG": "", "USERSPACE_CNI_OVSDB": switch.remote}
        running = watch(**over)
        _, said = running.communicate(timeout=60)
        assert (running.returncode, "no account of the API server" in said) == (2, True)
        switch.write_ids({"k8s-api-server": "ftp://me:word@192.0.2.1"})
        running = watch(**over)
        _, said = running.communicate(timeout=60)
        assert (running.returncode, "k8s-api-server of Open_vSwitch is no URL" in said, "word" in said) == (2, True, False)


def test_after_a_kill_amid_pods_another_goes_on(api: ApiServer, northbound: NorthboundDatabase, watch: Watch) -> None:
    """Whatever it had done by then: each pod has a row with the address of its annotation, and no two have one."""
    first = watch()
    add_pods(api, 0, COUNT)
    wait_until(lambda: noted(api, "p0"), what="the first annotation")
    first.kill()
    add_pods(api, COUNT, 5)
    watch()
    wait_until(lambda: all(noted(api, f"p{number}") for number in range(COUNT + 5)), 180.0, "all annotations")
    lines = northbound.nbctl(
        "--format=csv", "--no-headings", "--columns=name,addresses", "list", "Logical_Switch_Port"
    ).splitlines()
    rows = {line.partition(",")[0]: line for line in lines}
    assert len(rows) == COUNT + 5
    for number in range(COUNT + 5):
        assert f" {noted(api, f'p{number}').partition('/')[0]}" in rows[f"default_p{number}"].replace('"', " ")
    assert len({noted(api, f"p{number}") for number in range(COUNT + 5)}) == COUNT + 5


def test_a_pod_is_told_why_it_has_no_port(api: ApiServer, watch: Watch) -> None:
    """In an Event of its own."""
    watch()
    api.add_pod({"metadata": {"name": "lost"}, "spec": {"nodeName": "n9"}, "status": {"phase": "Running"}})
    event = wait_until(lambda: api.events.of("lost").get("LogicalPortMissing"), what="the Event")
    assert event["message"] == "eth0: there is no logical switch 'n9'"


def test_rows_of_the_old_watcher_are_adopted(api: ApiServer, northbound: NorthboundDatabase, watch: Watch) -> None:
    """Where that is asked for; the address is that of the pod's annotation."""
    northbound.nbctl("lsp-add", "n1", "default_p0", "--", "lsp-set-addresses", "default_p0", "dynamic")
    northbound.nbctl("set", "logical_switch_port", "default_p0", "external_ids:namespace=default", "external_ids:pod=true")
    add_pods(api, 0, 1)
    said = "{'ip_address': '192.168.1.9/24', 'mac_address': '0a:00:00:00:00:09', 'gateway_ip': '192.168.1.1'}"
    api.change("default", "p0", {"metadata": {"annotations": {"ovn": said}}})
    watch("--adopt")
    wait_until(
        lambda: northbound.nbctl("lsp-get-addresses", "default_p0") == "0a:00:00:00:00:09 192.168.1.9", what="the row is ours"
    )
