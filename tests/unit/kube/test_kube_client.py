"""How pods are read from the API server, and which credentials are used for that."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kube.apiserver import TOKEN, ApiServer, Fault
from tests.lab.node.scarce import scarce
from tests.lab.switch.switch import FOR_EVER_S, wait_until
from userspace_cni.attachment.facts import Pod, Volume
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NoteRefused, Unavailable, UserspaceError
from userspace_cni.base.root import HostRoot
from userspace_cni.kube import pod_requests as kube
from userspace_cni.kube.credentials import ApiSession
from userspace_cni.kube.kubeconfig import Kubeconfig, KubeconfigBounds
from userspace_cni.kube.pod_requests import CLIENTS_MAX, Clients, KubeClient

SPEC: dict[str, Any] = {
    "volumes": [
        {"name": "shared-dir", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": "/srv/sockets", "type": ""}},
        {"name": "info", "downwardAPI": {"items": []}},
    ],
    "initContainers": [{"name": "i", "volumeMounts": [{"name": "shared-dir", "mountPath": "/init"}]}],
    "containers": [
        {"name": "a", "volumeMounts": [{"name": "shared-dir", "mountPath": "/a"}, {"name": "info", "mountPath": "/etc/podinfo"}]},
        {"name": "b", "volumeMounts": [{"name": "shared-dir", "mountPath": "/b"}]},
        {"name": "c"},
    ],
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as started:
        started.add_pod({"metadata": {"name": "app", "uid": "u1", "annotations": {"k": "v"}}, "spec": SPEC})
        yield started


@pytest.fixture(autouse=True)
def long_after_the_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine look booted long ago: the one that runs these tests may have been booted a minute ago."""
    monkeypatch.setattr("userspace_cni.kube.kubeconfig.BOOTING_S", 0.0)


@pytest.fixture
def client(api: ApiServer, tmp_path: Path) -> KubeClient:
    """A client with a token in its kubeconfig."""
    return KubeClient(api.kubeconfig(tmp_path))


def soon(seconds: float = 60.0) -> Deadline:
    """A deadline that leaves enough time for a server that answers."""
    return Deadline.after(seconds)


def read(client: KubeClient, deadline: Deadline | None = None) -> Pod:
    pod = client.get_pod("default", "app", deadline or soon())
    assert pod is not None
    return pod


def test_a_pod_is_seen_with_volumes_mounts_and_annotations(client: KubeClient) -> None:
    """Everything that placement and notes need is read; init containers are left out."""
    assert read(client) == Pod(
        namespace="default",
        name="app",
        uid="u1",
        api_uid="u1",
        volumes=(Volume("shared-dir", "emptyDir"), Volume("host", "hostPath", "/srv/sockets"), Volume("info", "downwardAPI")),
        mounts={"shared-dir": ("/a", "/b"), "info": ("/etc/podinfo",)},
        annotations={"k": "v"},
        deleting=False,
        lacks_hugepages=True,
    )


def test_a_pod_on_its_way_out_is_seen_as_such(client: KubeClient, api: ApiServer) -> None:
    """A pod that is being deleted is recognised by deletionTimestamp."""
    api.change("default", "app", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert read(client).deleting


def test_an_absent_pod_is_none(client: KubeClient) -> None:
    """The answer 404 means that there is no pod. It is no error."""
    assert client.get_pod("default", "gone", soon()) is None


@pytest.mark.parametrize(
    ("namespace", "name"), [("default", ".."), ("..", "app"), ("a/b", "app"), ("default", "App"), ("", "app")]
)
def test_a_name_that_is_none_never_reaches_the_server(client: KubeClient, api: ApiServer, namespace: str, name: str) -> None:
    """Names come from CNI_ARGS and become part of a path: an invalid one is not sent with the node's credentials."""
    with pytest.raises(InvalidConfig, match="not a name of a pod"):
        client.get_pod(namespace, name, soon())
    assert api.requests == []


@pytest.mark.parametrize("fault", [Fault(close=True, times=1), Fault(status=500, times=2), Fault(status=429, times=1)], ids=str)
def test_what_passes_by_itself_is_tried_again(client: KubeClient, api: ApiServer, fault: Fault) -> None:
    """A lost connection, and an overloaded or restarting server, do not fail the pod's sandbox."""
    api.faults.append(fault)
    assert read(client).uid == "u1"


@pytest.mark.parametrize("fault", [Fault(close=True), Fault(status=503)], ids=str)
def test_what_does_not_pass_is_unavailable(client: KubeClient, api: ApiServer, fault: Fault) -> None:
    """When some tries have failed, the error tells the caller that it may try again."""
    api.faults.append(fault)
    with pytest.raises(Unavailable, match="API server"):
        read(client)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("fault", [Fault(hang=FOR_EVER_S), Fault(drip=1.0)], ids=["hangs", "drips"])
def test_a_server_that_hangs_or_drips_ends_at_the_deadline(client: KubeClient, api: ApiServer, fault: Fault) -> None:
    """A server that is silent, or that answers byte by byte, ends a request at its deadline. Both errors say "no answer in
    time"."""
    api.faults.append(fault)
    with pytest.raises(Unavailable, match="no answer in time"):
        read(client, soon(0.5))


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_permission_is_named(client: KubeClient, api: ApiServer, status: int) -> None:
    """The error names the verbs and resources that the account lacks."""
    api.faults.append(Fault("GET", status=status))
    with pytest.raises(NoteRefused, match="verbs get on pods"):
        read(client)


@pytest.mark.parametrize("pod", [{"spec": {"volumes": 7}}, {"spec": {"containers": [{"volumeMounts": [{}]}]}}, {"spec": []}])
def test_a_strangers_answer_is_refused(client: KubeClient, api: ApiServer, pod: dict[str, Any]) -> None:
    """An answer that does not have the shape of a pod is an error of ours, without a traceback."""
    api.add_pod({"metadata": {"name": "odd"}, **pod, "spec": pod["spec"] or {"volumes": [1]}})
    with pytest.raises(NoteRefused, match="unexpected answer"):
        client.get_pod("default", "odd", soon())


def test_a_dead_server_is_unavailable_in_the_systems_words(client: KubeClient, api: ApiServer) -> None:
    """The error has the system's words: connection refused."""
    api.stop()
    with pytest.raises(Unavailable, match="Connection refused"):
        read(client)


def kubeconfig(api: ApiServer, directory: Path, **user: Any) -> KubeClient:
    """A client that logs in as `user` says."""
    return KubeClient(api.kubeconfig(directory, user))


def test_a_rotated_token_is_read_again(api: ApiServer, tmp_path: Path) -> None:
    """A token file's new content is used after the first 401, without a timer or a restart."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    client = kubeconfig(api, tmp_path, tokenFile="token")
    read(client)
    api.token = "rotated"
    with pytest.raises(NoteRefused):
        read(client)
    file.write_text("rotated")
    assert read(client).uid == "u1"


def test_a_rewritten_kubeconfig_is_read_again(api: ApiServer, tmp_path: Path) -> None:
    """A client keeps following the file that it was given."""
    client = kubeconfig(api, tmp_path, token="old")
    with pytest.raises(NoteRefused):
        read(client)
    api.kubeconfig(tmp_path)
    requests = len(api.requests)
    assert read(client).uid == "u1"
    assert len(api.requests) == requests + 1


def plugin(directory: Path, text: str) -> dict[str, Any]:
    """An exec plugin: a shell script, and the entry of a kubeconfig that calls it."""
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never"}}


def credential(token: str) -> str:
    """The output of an exec plugin."""
    status = {"token": token, "expirationTimestamp": "2020-01-01T00:00:00Z"}
    return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})


def test_an_exec_plugin_gives_the_token_once(api: ApiServer, tmp_path: Path) -> None:
    """The plugin runs when credentials are needed, and not again before the server refuses them."""
    client = kubeconfig(api, tmp_path, **plugin(tmp_path, f"echo x >> runs; echo '{credential(TOKEN)}'"))
    read(client)
    read(client)
    assert (tmp_path / "runs").read_text() == "x\n"
    api.token = "another"
    with pytest.raises(NoteRefused):
        read(client)
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def test_a_failing_exec_plugin_is_not_quoted(
    api: ApiServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The plugin's stderr may have secrets. It reaches neither error nor stderr nor log, and the log's settings stay."""
    handlers, filters = list(logging.getLogger().handlers), list(logging.getLogger().filters)
    client = kubeconfig(api, tmp_path, **plugin(tmp_path, "echo secret-of-the-plugin >&2; exit 1"))
    with pytest.raises(UserspaceError) as raised:
        read(client)
    told = capfd.readouterr()
    assert "secret" not in str(raised.value) + told.out + told.err + caplog.text
    assert (logging.getLogger().handlers, logging.getLogger().filters) == (handlers, filters)


def test_a_hanging_exec_plugin_ends_at_the_deadline_and_runs_once(api: ApiServer, tmp_path: Path) -> None:
    """All callers wait for one plugin instead of starting one each, and none waits beyond its deadline."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    client = kubeconfig(api, tmp_path, **plugin(tmp_path, "echo x >> runs; : < gate"))
    try:
        for _ in range(2):
            with pytest.raises(Unavailable, match="exec plugin"):
                read(client, soon(0.6))
        wait_until((tmp_path / "runs").exists, what="the plugin to run")
        assert (tmp_path / "runs").read_text() == "x\n"
    finally:
        os.close(os.open(gate, os.O_RDWR))  # the plugin ends


@pytest.mark.parametrize("text", ["", "{", "[]", "a: b: c", '{"clusters": []}', "\x00", "users: !!python/object:os.system x"])
def test_a_broken_kubeconfig_is_the_configurations_fault(tmp_path: Path, text: str) -> None:
    """Whatever the library does with a broken kubeconfig, the answer is one error that names the file and quotes none of it."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=f"{path}") as raised:
        read(KubeClient(str(path)))
    assert "python" not in str(raised.value)


def test_a_kubeconfig_that_is_not_there(api: ApiServer, tmp_path: Path) -> None:
    """A missing kubeconfig is an error of the configuration that names the file. Once the file is written, the same client uses
    it."""
    client = KubeClient(str(tmp_path / "kubeconfig"))
    with pytest.raises(InvalidConfig, match=r"kubeconfig: No such file") as raised:
        read(client)
    assert "the setting kubeconfig" in raised.value.details
    assert api.kubeconfig(tmp_path) == str(tmp_path / "kubeconfig")
    assert read(client).uid == "u1"


@pytest.mark.parametrize("text", [None, "", "clusters: ["])
def test_a_kubeconfig_while_the_node_boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    """Soon after a boot the error is "try again", because the file may still be written."""
    monkeypatch.setattr("userspace_cni.kube.kubeconfig.BOOTING_S", float("inf"))
    if text is not None:
        (tmp_path / "kubeconfig").write_text(text)
    with pytest.raises(Unavailable, match=f"{tmp_path}/kubeconfig") as raised:
        read(KubeClient(str(tmp_path / "kubeconfig")))
    assert "was booted" in raised.value.details


def test_a_kubeconfig_that_others_could_have_written_is_refused(api: ApiServer, tmp_path: Path) -> None:
    """Root would run its exec plugin and send its token: a pod's file, one that
    all users can write, and a relative path are refused.
    """
    path = Path(api.kubeconfig(tmp_path))
    path.chmod(0o666)
    with pytest.raises(InvalidConfig, match="written by others"):
        read(KubeClient(str(path)))
    volume = tmp_path / "pods" / "uid" / "volumes" / "kubernetes.io~secret" / "s"
    volume.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(api.kubeconfig(volume))
    with pytest.raises(InvalidConfig, match="pod's volume"):
        read(KubeClient(str(link)))
    open_directory = tmp_path / "open"
    open_directory.mkdir()
    open_directory.chmod(0o777)
    with pytest.raises(InvalidConfig, match="written by others"):
        read(KubeClient(api.kubeconfig(open_directory)))
    with pytest.raises(InvalidConfig, match="absolute"):
        read(KubeClient("kubeconfig"))
    with pytest.raises(InvalidConfig, match="regular"):
        read(KubeClient(str(tmp_path)))
    assert api.requests == []


def test_nothing_secret_is_in_any_message(api: ApiServer, tmp_path: Path) -> None:
    """Tokens and server addresses stay out of every error."""
    api.token = "very-hidden"
    client = kubeconfig(api, tmp_path, token="very-hidden")
    texts = []
    for fault in (Fault(status=403), Fault(status=401), Fault(status=500), Fault(close=True), Fault(status=418)):
        api.faults[:] = [fault]
        with pytest.raises(UserspaceError) as raised:
            read(client)
        texts.append(str(raised.value))
    assert not [text for text in texts if "hidden" in text or str(api.port) in text or "injected" in text]


def test_tls_is_verified(tmp_path: Path) -> None:
    """The server's certificate must be the one in the kubeconfig; then the connection works."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with ApiServer(tls=tmp_path / "a") as right, ApiServer(tls=tmp_path / "b") as wrong:
        right.add_pod({"metadata": {"name": "app", "uid": "u1"}})
        path = Path(right.kubeconfig(tmp_path))
        assert read(KubeClient(str(path))).uid == "u1"
        path.write_text(path.read_text().replace(right.url, wrong.url))
        with pytest.raises(Unavailable, match="TLS"):
            read(KubeClient(str(path)))
        assert wrong.requests == []


def test_a_client_certificate(tmp_path: Path) -> None:
    """The client shows its certificate to a server that asks for one, from files or from the kubeconfig itself.

    A certificate that does not fit its key is refused as "try again later": both may be replaced one after the other.
    """
    api = ApiServer(tls=tmp_path)
    api.asks_certificate = True
    with api:
        api.add_pod({"metadata": {"name": "app", "uid": "u1"}})
        key = tmp_path / "key.pem"
        user = {"token": TOKEN, "client-certificate": str(api.certificate), "client-key": str(key)}
        assert read(kubeconfig(api, tmp_path, **user)).uid == "u1"
        assert api.certificate
        data = {"client-certificate-data": api.certificate.read_bytes(), "client-key-data": key.read_bytes()}
        inside = {name: base64.b64encode(content).decode() for name, content in data.items()}
        assert read(kubeconfig(api, tmp_path, token=TOKEN, **inside)).uid == "u1"
        with pytest.raises(Unavailable, match="API server"):
            read(kubeconfig(api, tmp_path, token=TOKEN))
        (tmp_path / "other").mkdir()
        ApiServer(tls=tmp_path / "other")
        key.write_bytes((tmp_path / "other" / "key.pem").read_bytes())
        with pytest.raises(Unavailable, match="TLS with the API server cannot be set up: KEY_VALUES_MISMATCH"):
            read(kubeconfig(api, tmp_path, **user))


def test_a_user_with_a_password(api: ApiServer, tmp_path: Path) -> None:
    """Name and password are sent as RFC 7617 defines."""
    with pytest.raises(NoteRefused):
        read(kubeconfig(api, tmp_path, username="node", password="hidden"))
    assert {request.headers["Authorization"] for request in api.requests} == {"Basic bm9kZTpoaWRkZW4="}


def test_a_proxy(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the kubeconfig is used, else that of the environment, except for the hosts and networks of NO_PROXY."""
    path = Path(api.kubeconfig(tmp_path))
    config = json.loads(path.read_text())
    config["clusters"][0]["cluster"] = {"server": "http://server.invalid", "proxy-url": api.url}
    path.write_text(json.dumps(config))
    assert read(KubeClient(str(path))).uid == "u1"
    config["clusters"][0]["cluster"] = {"server": "http://server.invalid"}
    path.write_text(json.dumps(config))
    monkeypatch.setenv("http_proxy", api.url)
    assert read(KubeClient(str(path))).uid == "u1"
    assert {request.path.partition("/api")[0] for request in api.requests} == {"http://server.invalid"}
    monkeypatch.setenv("no_proxy", "127.0.0.0/8")
    assert read(KubeClient(api.kubeconfig(tmp_path))).uid == "u1"
    assert api.requests[-1].path.startswith("/api/")


def test_the_library_of_the_api_is_left_out(tmp_path: Path) -> None:
    """Tokens and certificates do not load the library, which would cost each agent 17 MiB."""
    code = f"""
import sys
from tests.lab.kube.apiserver import TOKEN, ApiServer
from userspace_cni.base.deadline import Deadline
from userspace_cni.kube.pod_requests import KubeClient
with ApiServer(tls=Path({str(tmp_path)!r})) as api:
    before = set(sys.modules)
    path = api.kubeconfig(Path({str(tmp_path)!r}))
    assert KubeClient(path).get_pod("default", "app", Deadline.after(60)) is None
    print(sorted(name for name in set(sys.modules) - before if name in ("kubernetes", "urllib3", "yaml", "requests")))
"""
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", f"from pathlib import Path\n{code}"], cwd=root, check=False, capture_output=True, text=True
    )
    assert done.stdout.strip() == "['urllib3']", done.stderr


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and port come from the environment, token and CA from the mounted files. A new token is used after a 401."""
    with ApiServer(tls=tmp_path) as api:
        api.add_pod({"metadata": {"name": "app", "uid": "u1"}})
        (tmp_path / "token").write_text(TOKEN)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        session = ApiSession(None, service_account=str(tmp_path))
        path = "/api/v1/namespaces/default/pods/app"
        assert session.request("GET", path, soon()).body["metadata"]["uid"] == "u1"
        api.token = "rotated"
        (tmp_path / "token").write_text("rotated")
        assert session.request("GET", path, soon()).status == 200


def test_a_service_account_behind_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is written for a proxy, because a container's root may be read-only."""
    with ApiServer(tls=tmp_path) as api:
        api.add_pod({"metadata": {"name": "app", "uid": "u1"}})
        (tmp_path / "token").write_text(TOKEN)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        monkeypatch.setenv("https_proxy", "http://proxy.invalid")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
        session = ApiSession(None, service_account=str(tmp_path))
        assert session.request("GET", "/api/v1/namespaces/default/pods/app", soon()).body["metadata"]["uid"] == "u1"


def test_a_process_outside_of_a_pod_is_not_in_cluster(tmp_path: Path) -> None:
    """The variables without a token (a delegate chrooted to the host inherits them) are not enough."""
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert not kube.in_cluster(environ, str(tmp_path))
    (tmp_path / "token").write_text("t")
    assert kube.in_cluster(environ, str(tmp_path))
    assert not kube.in_cluster({}, str(tmp_path))
    with pytest.raises(Unavailable, match="credentials"):
        ApiSession(None, service_account=str(tmp_path)).request("GET", "/", soon())


def test_clients_are_shared_per_kubeconfig_of_the_node(api: ApiServer, tmp_path: Path) -> None:
    """Each account has one connection and one set of credentials. Paths are the node's, as this process sees them."""
    (tmp_path / "etc").mkdir()
    api.kubeconfig(tmp_path / "etc")
    clients = Clients(KubeconfigBounds(("/etc",)), HostRoot(str(tmp_path)))
    assert clients.of("/etc/kubeconfig") is clients.of("/etc/kubeconfig")
    assert read(clients.of("/etc/kubeconfig")).uid == "u1"
    assert clients.of("") is clients.of("")


def test_clients_of_many_kubeconfigs() -> None:
    """Tenants choose the names of kubeconfigs: only the clients that were used last are kept, and our own always."""
    clients = Clients(KubeconfigBounds(("/etc",)))
    own, first = clients.of(""), clients.of("/etc/first")
    for number in range(CLIENTS_MAX - 1):
        clients.of(f"/etc/{number}")
    assert (clients.of(""), clients.of("/etc/first")) == (own, first)
    for number in range(1000):
        clients.of(f"/etc/{number}")
    assert clients.of("") is own
    assert clients.of("/etc/first") is not first


def test_a_kubeconfig_that_is_elsewhere_now_is_followed(api: ApiServer, tmp_path: Path) -> None:
    """A link to the kubeconfig is followed when it leads to another file, as when all files are exchanged at once."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        api.kubeconfig(tmp_path / name, {"token": TOKEN if name == "new" else "outdated"})
    link = tmp_path / "current"
    link.symlink_to("old")
    clients = Clients(KubeconfigBounds(("/old", "/new")), HostRoot(str(tmp_path)))
    with pytest.raises(NoteRefused):
        read(clients.of("/current/kubeconfig"))
    link.unlink()
    link.symlink_to("new")
    assert read(clients.of("/current/kubeconfig")).uid == "u1"


def test_a_mirror_pod_is_seen_under_the_uid_of_its_static_pod(client: KubeClient, api: ApiServer) -> None:
    """The kubelet names directories by that UID, and the runtime sends it as K8S_POD_UID."""
    api.add_pod({"metadata": {"name": "static-n1", "annotations": {kube.MIRROR: "cafe01"}}})
    pod = client.get_pod("default", "static-n1", soon())
    assert pod is not None
    assert pod.uid == "cafe01"


def test_one_client_serves_many_threads(client: KubeClient) -> None:
    """Sixteen threads read at once, the first of them while credentials are still being loaded."""
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(read(client).uid)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["u1"] * 16


@pytest.mark.parametrize("thread", [1, 2])
def test_no_thread_to_ask_in(api: ApiServer, tmp_path: Path, thread: int) -> None:
    """When no thread can be started for credentials or a request, the error is "try again later", and the next request works."""
    session, path = ApiSession(Kubeconfig(api.kubeconfig(tmp_path))), "/api/v1/namespaces/default/pods/app"
    with (
        scarce(thread, RuntimeError("can't start new thread"), frozenset({"_start_new_thread"})),
        pytest.raises(Unavailable, match="no thread can be started"),
    ):
        session.request("GET", path, soon())
    assert session.request("GET", path, soon()).status == 200


def test_a_pod_is_read_all_the_same_when_a_thread_was_missing(client: KubeClient) -> None:
    """A request is tried again within its deadline when no thread could be started for it."""
    with scarce(1, RuntimeError("can't start new thread"), frozenset({"_start_new_thread"})):
        assert read(client).uid == "u1"


def test_a_session_for_own_threads_starts_none(api: ApiServer, tmp_path: Path) -> None:
    """A request is made by the thread that asks, within its deadline all the same."""
    session = KubeClient(api.kubeconfig(tmp_path)).session.for_own_threads()
    path = "/api/v1/namespaces/default/pods/app"
    assert session.request("GET", path, Deadline.after(10)).body["metadata"]["uid"] == "u1"
    before = threading.active_count()
    started: list[str] = []
    threading.setprofile(lambda *_: started.append(threading.current_thread().name))
    try:
        assert session.request("GET", path, Deadline.after(10)).status == 200
    finally:
        threading.setprofile(None)
    assert (threading.active_count(), "api-server" in started) == (before, False)
    api.faults.append(Fault("GET", hang=FOR_EVER_S))
    with pytest.raises(Unavailable, match="no answer in time"):
        session.request("GET", path, Deadline.after(0.3))
