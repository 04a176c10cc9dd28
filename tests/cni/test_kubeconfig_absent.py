"""A kubeconfig that is missing or invalid is an error of the configuration, except in the first minutes after a boot."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cni.spec import refused, succeeded
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.node import Node

DAY, MOMENT = 86400, 60


def up_for(node: Node, seconds: int) -> Node:
    """A node whose plugin sees a boot that long ago: it runs in a time namespace."""
    plugin, shifted = Path(node.plugin), seconds - int(time.clock_gettime(time.CLOCK_BOOTTIME))
    inner = plugin.with_name("inner")
    if not inner.exists():
        plugin.rename(inner)
    plugin.write_text(f'#!/bin/sh\nexec unshare --time --boottime {shifted} -- {inner} "$@"\n')
    plugin.chmod(0o755)
    return node


@pytest.fixture
def pod(node: Node) -> Pod:
    pod = Pod(volume={"emptyDir": {}})
    node.empty_dir(pod.uid)
    return pod


@pytest.mark.parametrize("text", [None, "", "{", "clusters: []\n"])
def test_a_network_names_it(node: Node, sandbox: str, pod: Pod, text: str | None) -> None:
    """ADD answers 7 with the file, what names it and what to do; soon after a boot 11, because the file may still be written."""
    path = node.directory / "kubeconfig"
    if text is not None:
        path.write_text(text)
    network = node.network("1.0.0", kubeconfig=str(path), ipam=node.host_local())
    made = up_for(node, DAY).run("ADD", network, sandbox, CNI_ARGS=pod.args)
    refused(made, 7, str(path), "the key kubeconfig of the network", "correct")
    made = up_for(node, MOMENT).run("ADD", network, sandbox, CNI_ARGS=pod.args)
    refused(made, 11, str(path), "the key kubeconfig of the network", "booted")
    for seconds in (DAY, MOMENT):
        succeeded(up_for(node, seconds).run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert node.leftovers() == {}


def test_the_settings_name_it(node: Node, sandbox: str, pod: Pod) -> None:
    """A file that the settings name is an error of the settings: 7 names setting and variable."""
    path = node.directory / "none"
    node.settings["USERSPACE_CNI_KUBECONFIG"] = str(path)
    made = up_for(node, DAY).run("ADD", node.network(), sandbox, CNI_ARGS=pod.args)
    refused(made, 7, str(path), "the setting kubeconfig (USERSPACE_CNI_KUBECONFIG)", "No such file")
    refused(up_for(node, MOMENT).run("ADD", node.network(), sandbox, CNI_ARGS=pod.args), 11, "the setting kubeconfig")
    assert node.leftovers() == {}


def test_a_file_that_it_names(node: Node, sandbox: str, api: ApiServer, pod: Pod) -> None:
    """For a missing certificate or token the error names both files."""
    pod.create(api)
    path = Path(api.kubeconfig(node.directory, {"tokenFile": "token"}))
    network = node.network(kubeconfig=str(path))
    made = up_for(node, DAY).run("ADD", network, sandbox, CNI_ARGS=pod.args)
    refused(made, 7, str(path), f"{node.directory}/token", "No such file")
    assert json.loads(path.read_text())
    assert api.requests == []


def test_del_when_it_has_gone(node: Node, sandbox: str, api: ApiServer, pod: Pod) -> None:
    """DEL never fails because the kubeconfig is missing: the note stays in the pod, and everything else is removed."""
    pod.create(api)
    path = Path(api.kubeconfig(node.directory))
    network = node.network("1.0.0", kubeconfig=str(path), ipam=node.host_local())
    added = succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    path.unlink()
    up_for(node, DAY)
    refused(node.run("CHECK", {**network, "prevResult": added}, sandbox, CNI_ARGS=pod.args), 7, str(path), "No such file")
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert node.leftovers() == {}
