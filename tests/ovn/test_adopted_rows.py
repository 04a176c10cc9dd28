"""Rows of pods that another controller made, and that ours takes over: OVN keeps their pods bound."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.ovn.central import CHASSIS, Ovn
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.root import HERE
from userspace_cni.base.settings import Settings
from userspace_cni.controller.controller_metrics import ControllerMetrics
from userspace_cni.controller.port_service import PodPortKeeper, read_task
from userspace_cni.kube.kubeconfig import KubeconfigBounds
from userspace_cni.kube.list_watch import WatchTimes
from userspace_cni.kube.pod_requests import Clients

BRIDGE, SWITCH, PORT = "br-int", "n1", "default_app"
WATCHED = WatchTimes(page=100, back_off=BackOff(0.005, 0.02), confirm_s=0)
ADDRESS = {"ip_address": "192.168.1.9/24", "mac_address": "0a:00:00:00:00:09", "gateway_ip": "192.168.1.1"}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.add(node(SWITCH))
        yield started


def a_pod(uid: str) -> dict[str, Any]:
    metadata = {"name": "app", "uid": uid, "annotations": {"ovn": json.dumps(ADDRESS)}}
    return {"metadata": metadata, "spec": {"nodeName": SWITCH}, "status": {"phase": "Running"}}


def add_interface(switch: Switch, name: str, **ids: str) -> None:
    """A port as a plugin makes it; the former one wrote no iface-id-ver."""
    said = {"iface-id": PORT, **{key.replace("_", "-"): value for key, value in ids.items()}}
    row = ["type=dpdkvhostuserclient", f"options:vhost-server-path={switch.rundir}/{name}.sock"]
    row += [f"external_ids:{key}={value}" for key, value in said.items()]
    switch.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, *row)


def is_bound(switch: Switch, name: str) -> bool:
    return bool(switch.interface(name)["external_ids"].get("ovn-installed") == "true")


def test_a_running_pod_stays_bound(switch: Switch, ovn: Ovn, api: ApiServer, tmp_path: Path) -> None:
    """Its interface knows no version, and its chassis is not called as the Node: neither is asked of it. The next pod of that
    name has both."""
    ovn.nbctl("ls-add", SWITCH, "--", "set", "logical_switch", SWITCH, "other_config:subnet=192.168.1.0/24")
    marks = ("external_ids:namespace=default", "external_ids:pod=true")
    ovn.nbctl(
        "lsp-add", SWITCH, PORT, "--", "lsp-set-addresses", PORT, "dynamic", "--", "set", "logical_switch_port", PORT, *marks
    )
    wait_until(lambda: switch.bridge(BRIDGE), what="the controller has made its bridge")
    add_interface(switch, "former")
    wait_until(lambda: is_bound(switch, "former"), what="OVN has the pod's port")
    api.add_pod(a_pod("first"))
    session = Clients(KubeconfigBounds.of(Settings()), HERE, api.kubeconfig(tmp_path)).of("").session
    task = read_task(Settings(ovn_nb=ovn.remote("nb")), adopts=True)
    kept = PodPortKeeper(session, task, lambda: True, ControllerMetrics(lambda: True, {}), watch_times=WATCHED)
    kept.start()
    try:
        wait_until(lambda: ovn.nbctl("lsp-get-port-security", PORT), what="the row is ours")
        ovn.nbctl("--wait=hv", "sync")
        assert ovn.nbctl("get", "logical_switch_port", PORT, "options") == "{}"
        assert is_bound(switch, "former")
        assert ovn.nbctl("get", "logical_switch_port", PORT, "up") == "true"

        api.add({**node(SWITCH), "metadata": {"name": SWITCH, "annotations": {"userspace-cni.io/chassis": CHASSIS}}})
        api.remove_pod("default", "app")
        switch.vsctl("del-port", BRIDGE, "former")
        api.add_pod(a_pod("second"))
        add_interface(switch, "next", iface_id_ver="second")
        wait_until(lambda: is_bound(switch, "next"), what="OVN has the next pod's port")
        assert "iface-id-ver=second" in ovn.nbctl("get", "logical_switch_port", PORT, "options").replace('"', "")
    finally:
        kept.stop()
        ovn.nbctl("ls-del", SWITCH)
        for name in ("former", "next"):
            switch.vsctl("--if-exists", "del-port", BRIDGE, name)
