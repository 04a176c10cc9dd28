"""Kubeconfigs that networks name: which files are accepted, and what they may make root do."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import TOKEN, ApiServer
from userspace_cni.attachment.steps import PodNote
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, UserspaceError
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.kube.kubeconfig import CONTAINERS, Kubeconfig, KubeconfigBounds
from userspace_cni.kube.notes import PodNoteDriver
from userspace_cni.kube.pod_requests import Clients, KubeClient

HOSTS = "/var/lib/kubelet/pods/0123-uid/etc-hosts"
BOUNDS = KubeconfigBounds.of(Settings())


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.add_pod({"metadata": {"name": "app", "uid": "u1"}})
        yield started


@pytest.fixture(autouse=True)
def long_after_the_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine look booted long ago: the one that runs these tests may have been booted a minute ago."""
    monkeypatch.setattr("userspace_cni.kube.kubeconfig.BOOTING_S", 0.0)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The root of a host that is mounted elsewhere, with files of the administrator and files that containers write."""
    for directory in ("etc/cni/net.d", "etc/kubernetes", "root", "var/lib/kubelet/pods/0123-uid", "run", "var/lib/containerd"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "var/run").symlink_to("../run")
    return tmp_path


def read(api: ApiServer, host: Path, path: str, bounds: KubeconfigBounds | None = BOUNDS) -> None:
    assert KubeClient(path, HostRoot(str(host)), bounds).get_pod("default", "app", Deadline.after(60))


def put(api: ApiServer, host: Path, path: str, **user: Any) -> str:
    written = Path(api.kubeconfig(host, user or None))
    (host / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    written.rename(host / path.lstrip("/"))
    return path


@pytest.mark.parametrize("path", ["/etc/cni/net.d/multus.kubeconfig", "/etc/kubernetes/node.conf"])
def test_below_the_administrators_directories(api: ApiServer, host: Path, path: str) -> None:
    """A kubeconfig below these directories is accepted, also by a link from elsewhere that leads to it."""
    put(api, host, path)
    (host / "root/link").symlink_to(path)
    read(api, host, path)
    read(api, host, "/root/link")


@pytest.mark.parametrize("path", ["/root/kubeconfig", "/etc/cni-other/kubeconfig", "/kubeconfig", "/etc/kubernetes.conf"])
def test_elsewhere(api: ApiServer, host: Path, path: str) -> None:
    """A kubeconfig elsewhere is refused with the setting's name, also by a link from those directories, and if it is missing."""
    put(api, host, path)
    (host / "etc/cni/link").symlink_to(path)
    for named in (path, "/etc/cni/link", "/root/none", "/etc/cni/net.d/../../../root/kubeconfig"):
        with pytest.raises(InvalidConfig) as refused:
            read(api, host, named)
        assert "kubeconfig_dirs" in refused.value.details
    assert api.requests == []
    with pytest.raises(InvalidConfig, match="No such file"):
        read(api, host, "/etc/cni/none")


@pytest.mark.parametrize("path", [HOSTS, "/var/lib/vhost_sockets/uid/k", *(f"{directory}/c/k" for directory in CONTAINERS)])
def test_what_containers_write(api: ApiServer, host: Path, path: str) -> None:
    """A file that a pod's root writes belongs to root on the node: it is refused under each of its names, with any settings."""
    put(api, host, path)
    (host / "etc/cni/link").symlink_to(path)
    widest = Settings(kubeconfig_dirs=("/etc", "/var", "/run", "/opt", "/proc"), kubeconfig_exec=True)
    for named in (path, "/etc/cni/link"):
        with pytest.raises(InvalidConfig, match="where containers write"):
            read(api, host, named, KubeconfigBounds.of(widest))
    assert api.requests == []


def test_what_containers_write_by_another_name(api: ApiServer, host: Path) -> None:
    """If the kubelet's directory is a link, files below its target are refused, too."""
    put(api, host, "/data/kubelet/pods/0123-uid/etc-hosts")
    (host / "var/lib/kubelet-link").symlink_to("/data/kubelet")
    settings = Settings(kubelet_dir="/var/lib/kubelet-link", kubeconfig_dirs=("/data",))
    with pytest.raises(InvalidConfig, match="where containers write"):
        read(api, host, "/data/kubelet/pods/0123-uid/etc-hosts", KubeconfigBounds.of(settings))


def programs(witness: Path) -> list[dict[str, Any]]:
    """Users for whom the library would run a program."""
    arguments = {"command": "touch", "args": [str(witness)]}
    google = {"cmd-path": "touch", "cmd-args": str(witness)}
    return [
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", **arguments}},
        {"auth-provider": {"name": "gcp", "config": google}},
        {"token": TOKEN, "exec": None},
    ]


@pytest.mark.parametrize("number", range(3))
def test_no_program_is_run(api: ApiServer, host: Path, number: int) -> None:
    """A user with a program is refused with the setting's name. With the setting, or in the administrator's own file, it is
    run."""
    witness = host / "witness"
    path = put(api, host, "/etc/cni/kubeconfig", **programs(witness)[number])
    with pytest.raises(InvalidConfig) as refused:
        read(api, host, path)
    assert "kubeconfig_exec" in refused.value.details
    assert not witness.exists()
    for bounds in (None, replace(BOUNDS, programs=True)):
        client = KubeClient(path, HostRoot(str(host)), bounds)
        if number < 2:  # the plugins of this test give no token
            with pytest.raises(UserspaceError):
                client.get_pod("default", "app", Deadline.after(60))
            witness.unlink()
        else:
            assert client.get_pod("default", "app", Deadline.after(60))


@pytest.mark.parametrize("key", ["tokenFile", "client-certificate", "client-key"])
def test_files_that_it_names(api: ApiServer, host: Path, key: str) -> None:
    """Files that a kubeconfig names must lie in the same directories: root would read any file and send it to that server."""
    (host / "root/secret").write_text("precious")
    (host / "etc/cni/link").symlink_to("/root/secret")
    for name in ("/root/secret", "../../root/secret", "link", "/var/run/secret", HOSTS):
        path = put(api, host, "/etc/cni/kubeconfig", **{key: name})
        with pytest.raises(InvalidConfig) as refused:
            read(api, host, path)
        assert "kubeconfig_dirs" in refused.value.details
        assert "precious" not in str(refused.value)
    assert api.requests == []


def test_files_beside_it(api: ApiServer, host: Path) -> None:
    """A token file beside the kubeconfig, or below the other directory, is read from the host, and again when it changes."""
    for directory, name in (("etc/cni/net.d", "token"), ("etc/kubernetes", "/etc/kubernetes/token")):
        (host / directory / "token").write_text(f"{TOKEN}\n")
        path = put(api, host, "/etc/cni/net.d/kubeconfig", tokenFile=name)
        client = KubeClient(path, HostRoot(str(host)), BOUNDS)
        assert client.get_pod("default", "app", Deadline.after(60))
        api.token = "rotated"
        (host / directory / "token").write_text("rotated")
        before = len(api.requests)
        assert client.get_pod("default", "app", Deadline.after(60))
        assert len(api.requests) == before + 1
        api.token = TOKEN


def test_files_of_the_administrators_own(api: ApiServer, host: Path) -> None:
    """Credentials that a setting names may lie anywhere and may name any file."""
    (host / "root/token").write_text(TOKEN)
    read(api, host, put(api, host, "/root/kubeconfig", tokenFile="/root/token"), None)
    clients = Clients(BOUNDS, HostRoot(str(host)), "/root/kubeconfig")
    assert clients.of("").get_pod("default", "app", Deadline.after(60))
    with pytest.raises(InvalidConfig):
        clients.of("/root/kubeconfig").get_pod("default", "app", Deadline.after(60))


def test_what_is_taken_of_it(api: ApiServer, host: Path) -> None:
    """The contents of files replace their names, and unknown keys are dropped."""
    for name in ("ca", "cert", "key"):
        (host / "etc/cni" / name).write_text(name)
    user = {"client-certificate": "cert", "client-key": "/etc/cni/key", "as": "admin", "token": "t", "tokenFile": "/root/x"}
    path = put(api, host, "/etc/cni/kubeconfig", **user)
    content = json.loads((host / "etc/cni/kubeconfig").read_text())
    content["clusters"][0]["cluster"] |= {"certificate-authority": "ca", "proxy-url": "http://127.0.0.1:1", "new": "/root/x"}
    (host / "etc/cni/kubeconfig").write_text(json.dumps(content))
    loaded = Kubeconfig(path, HostRoot(str(host)), BOUNDS).load()

    def data(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    certificate = {"client-certificate-data": data("cert"), "client-key-data": data("key")}
    assert loaded.user == {"token": "t", **certificate}
    server = {"server": api.url, "certificate-authority-data": data("ca"), "proxy-url": "http://127.0.0.1:1"}
    assert loaded.cluster == server
    assert sorted(loaded.files) == [f"/etc/cni/{name}" for name in ("ca", "cert", "key", "kubeconfig")]


def test_a_note_of_an_older_record(api: ApiServer, host: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Undo says why the note could not be removed, succeeds, and reads no file."""
    put(api, host, HOSTS)
    step = PodNote("default", "app", "u1", "c0ffee", "net1", "{}", "/x/", HOSTS)
    PodNoteDriver(Clients(BOUNDS, HostRoot(str(host)))).undo(step, Deadline.after(60))
    assert "where containers write" in capfd.readouterr().err
    assert api.requests == []
