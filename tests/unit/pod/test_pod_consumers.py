"""Existing readers, rebuilt here as they are, understand what we write."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pod.test_pod_document import CONTAINER, entry
from userspace_cni.pod import document, eal

Written = dict[str, str]


def go_quote(text: str) -> str:
    """strconv.Quote for the characters that occur here."""
    table = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(table.get(character, character) for character in text) + '"'


def downward_api(annotations: Written) -> str:
    """The file as kubelet writes it: sorted, one quoted annotation per line."""
    return "\n".join(f"{key}={go_quote(value)}" for key, value in sorted(annotations.items()))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An annotations file with two interfaces of ours among what a cluster adds."""
    entries = [entry("net1"), entry("net2", mode="client", queues=4, queueSize=1024)]
    annotations = {
        "k8s.v1.cni.cncf.io/network-status": json.dumps([{"name": "dflt", "interface": "eth0"}], indent=4),
        document.CONFIGURATION_DATA: document.render(entries),
        document.MAPPED_DIR: document.mapped_dir_value("/var/lib/cni/usrspcni"),
        document.DPDK_ARGS: eal.joined(eal.arguments(entries, "/var/lib/cni/usrspcni/")),
        "kubernetes.io/config.source": "api",
    }
    path = tmp_path / "annotations"
    path.write_text(downward_api(annotations))
    return path


def app_netutil(text: str) -> list[dict[str, Any]]:
    """What openshift/app-netutil makes of the file: GetInterfaces and userspace.ParseAnnotations, in Python."""
    data: list[dict[str, Any]] = []
    mapped_dir = ""
    for line in text.splitlines():
        parts = line.strip().split("=")
        if len(parts) != 2:
            continue
        value = parts[1].replace("\\n", "").replace("\\", "").replace(" ", "")[1:-1]
        if parts[0] == "userspace/configuration-data":
            data = json.loads(value)
        if parts[0] == "userspace/mapped-dir":
            mapped_dir = value
    return [
        {
            "IfName": one["ifName"],
            "Name": one["name"],
            "IPs": [ip["address"] for ip in one["ipResult"]["ips"] if ip.get("version") in ("4", "6")],
            "Mode": one["config"]["vhost"]["mode"],
            "Socketpath": mapped_dir + one["config"]["vhost"]["socketfile"],
        }
        for one in data
        if one["config"]["iftype"] == "vhostuser"
    ]


def test_app_netutil_gets_paths_modes_and_addresses(file: Path) -> None:
    """Neither its split at '=' nor its deletion of blanks and backslashes loses anything of ours."""
    first, second = app_netutil(file.read_text())
    assert first["Socketpath"] == f"/var/lib/cni/usrspcni/{CONTAINER[:12]}-net1"
    assert first["IPs"] == ["10.56.217.40/24", "fd00::40/64"]
    assert (first["Mode"], second["Mode"]) == ("server", "client")


def test_app_netutil_survives_awkward_values() -> None:
    """A value with '=', quotes and backslashes does not cost it the whole list."""
    awkward = {**entry("net1"), "name": 'a="b"\\=c'}
    text = downward_api({document.CONFIGURATION_DATA: document.render([awkward]), document.MAPPED_DIR: "/x/"})
    assert app_netutil(text)[0]["Socketpath"] == f"/x/{CONTAINER[:12]}-net1"


def test_the_testpmd_script_finds_the_container_id(file: Path) -> None:
    """The shell pipeline of upstream's testpmd image yields the first interface's container ID."""
    script = f"grep containerId {file} | cut -d '\"' -f 5 | sed 's/\\\\//'"
    found = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout
    assert found.strip() == CONTAINER


def test_virtink_finds_its_interface_by_name(file: Path) -> None:
    """The annotation's text, as an environment variable has it, is a JSON list that is searched for ifName."""
    text = document.parse_annotations(file.read_text())[document.CONFIGURATION_DATA]
    found = next(one for one in json.loads(text) if one["ifName"] == "net2")
    assert found["config"]["vhost"]["socketfile"] == f"{CONTAINER[:12]}-net2"


def test_our_own_reader_gets_back_what_was_written(file: Path) -> None:
    """Go's quoting and our unquoting are inverse to each other."""
    text = document.parse_annotations(file.read_text())[document.CONFIGURATION_DATA]
    assert document.parse(text)[0] == entry("net1")
