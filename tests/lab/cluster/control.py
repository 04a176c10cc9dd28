"""The control plane: etcd, API server, controller manager and scheduler in a machine of their own, with RBAC.

Every client has a token with the user and groups that the real installers give it. The key that signs tokens of service accounts
is made anew for each cluster.
"""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.lab.cluster.machine import Daemon, Machine
from tests.lab.cluster.shape import Shape
from tests.lab.kube.kubectl import debian_kubectl
from tests.lab.node.agent import get
from tests.lab.switch.switch import listens, wait_until

SERVICES = "10.96.0.0/24"
API = "10.96.0.1"
"""The first address of SERVICES, which every pod gets as the API server's."""
NODE_NAME = "lab-node"
ADMIN = "admin"
USERS = {
    ADMIN: ("kubernetes-admin", "system:masters"),
    "kubelet": (f"system:node:{NODE_NAME}", "system:nodes"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
}
_BOOT = """\
mount --make-rprivate /
mount -t tmpfs etcd "$1"
mount -t proc proc /proc
ip link set lo up
ip address add "$2/32" dev lo
echo ready
while read -r _; do :; done
"""
_READY_S = 60.0
_CERTIFICATES = """\
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=lab-ca -keyout ca.key -out ca.crt
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=kube-apiserver -keyout api.key -out api.csr
printf 'subjectAltName=IP:%s,DNS:kubernetes.default.svc\\nauthorityKeyIdentifier=keyid\\n' "$1" >api.ext
openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile api.ext -out api.crt
openssl ecparam -name prime256v1 -genkey -noout -out accounts.key
"""


class Control:
    """The control plane with everything that it writes below the new `directory`; `programs` is where its binaries are."""

    machine: Machine

    def __init__(self, directory: Path, programs: Path, shape: Shape) -> None:
        self.directory = directory
        self.shape = shape
        self._programs = programs
        self._kubectl = debian_kubectl()
        self._daemons: dict[str, Daemon] = {}
        self._etcd = directory / "etcd"
        self.proxy = directory / "api.sock"
        self._etcd.mkdir(parents=True)
        self._ending = ExitStack()
        subprocess.run(["bash", "-ec", _CERTIFICATES, "make", API], cwd=directory, capture_output=True, check=True)
        self._write_users()

    def start(self) -> None:
        """Start etcd and the API server, which takes some seconds to answer: `wait_serving`."""
        self.machine = self._ending.enter_context(Machine("bash", "-ec", _BOOT, "boot", str(self._etcd), API))
        self._start("etcd", f"--data-dir={self._etcd}/data", "--listen-peer-urls=http://127.0.0.1:2380")
        self._start(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            "--secure-port=443",
            f"--advertise-address={API}",
            "--insecure-port=0",
            f"--tls-cert-file={self.directory}/api.crt",
            f"--tls-private-key-file={self.directory}/api.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.directory}/accounts.key",
            f"--service-account-signing-key-file={self.directory}/accounts.key",
            f"--token-auth-file={self.directory}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--service-cluster-ip-range={SERVICES}",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
        )

    def wait_serving(self) -> None:
        """Wait until the API server answers, and start what follows its objects."""
        wait_until(self._answers, _READY_S, f"the API server; see {self.directory}/kube-apiserver.log")
        self._start(
            "kube-controller-manager",
            *self._client("controllers"),
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.directory}/accounts.key",
            f"--root-ca-file={self.directory}/ca.crt",
        )
        self._start("kube-scheduler", *self._client("scheduler"))
        proxy = self.kubectl_inside("proxy", f"--unix-socket={self.proxy}", "--accept-hosts=.*")
        self._daemons["proxy"] = self.machine.start(self.directory / "proxy.log", *proxy)
        wait_until(lambda: listens(self.proxy, self.machine.pid), what=f"kubectl proxy; see {self.directory}/proxy.log")

    def look(self, path: str, **query: str) -> dict[str, Any]:
        """What the API server has at a path, {} if there is nothing; `query`: labelSelector, fieldSelector.

        For repeated questions: a `kubectl get` takes a tenth of a second of a core for its process.
        """
        status, body = get(str(self.proxy), f"{path}?{urlencode(query)}")
        assert status in {200, 404}, f"{path}: {status}: {body.decode()}"
        return dict(json.loads(body)) if status == 200 else {}

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """The kubeconfig with which one of USERS reaches the API server."""
        return self.directory / f"{user}.kubeconfig"

    def kubectl(self, *arguments: str) -> list[str]:
        """A kubectl of the administrator, which sees this machine's files."""
        enter = ["nsenter", f"--net=/proc/{self.machine.pid}/ns/net"]
        return [*enter, *self.kubectl_inside(*arguments)]

    def kubectl_inside(self, *arguments: str) -> list[str]:
        """The same for a machine that reaches the API server, as the node does."""
        options = [f"--kubeconfig={self.kubeconfig()}", f"--cache-dir={self.directory}/kubectl"]
        return [str(self._kubectl), *options, *arguments]

    def kubectl_script(self) -> str:
        """The same as a program for scripts that find kubectl in PATH."""
        return f'#!/bin/sh\nexec {shlex.join(self.kubectl())} "$@"\n'

    def end(self) -> None:
        """End what was started of it."""
        self._ending.close()

    def _answers(self) -> bool:
        for name, daemon in self._daemons.items():
            assert daemon.runs(), f"{name} has ended:\n{daemon.log.read_text()[-2000:]}"
        done = subprocess.run(self.kubectl("get", "--raw", "/readyz"), capture_output=True, check=False)
        return done.returncode == 0

    def _client(self, user: str) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig(user)}", "--leader-elect=false", "--port=0", "--bind-address=127.0.0.1"]

    def _start(self, name: str, *arguments: str) -> None:
        log = self.directory / f"{name}.log"
        self._daemons[name] = self.machine.start(log, str(self._programs / name), *arguments, *self.shape.more(name))

    def _write_users(self) -> None:
        cluster = {"server": f"https://{API}", "certificate-authority": f"{self.directory}/ca.crt"}
        lines = []
        for user, (name, group) in USERS.items():
            token = secrets.token_hex(16)
            lines.append(f'{token},{name},{name},"{group}"\n')
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "lab", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
                "current-context": "lab",
            }
            self.kubeconfig(user).write_text(json.dumps(document))
        (self.directory / "tokens.csv").write_text("".join(lines))
