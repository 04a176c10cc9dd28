"""The pods of overlays/ovn on podman: databases, ovn-northd and ovn-controller, by the commands of the manifests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from tests.lab.kube.daemonset import CLUSTER
from tests.lab.kube.podman_pod import PodHost, PodmanPod
from tests.lab.ovn.started import Started
from tests.lab.runtimes.ovn_image import IMAGE
from tests.lab.runtimes.podman import PodmanError, Storage
from tests.lab.switch.switch import CTL_SECONDS, Switch, wait_until
from tests.lab.switch.veths import inside

OVERLAY: Final = CLUSTER / "overlays" / "ovn"
SCRIPT: Final = OVERLAY / "database.sh"
ADDRESSES: Final = ("10.98.0.1", "10.98.0.2", "10.98.0.3")
"""Of the nodes with the databases: the network has all of them."""
NODE: Final = "n1"
DATABASES: Final = {"nb": "OVN_Northbound", "sb": "OVN_Southbound"}
_WRITTEN: Final = "192.0.2."
"""How the addresses begin in the files."""


def read_variables(path: Path) -> dict[str, str]:
    """What a file of variables says, with the addresses of this lab."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    prefix = ADDRESSES[0].rpartition(".")[0] + "."
    return {name: value.replace(_WRITTEN, prefix) for name, _, value in (line.partition("=") for line in lines)}


class ContainedOvn(Started):
    """OVN in containers of `podman`, in the network of `switch`. Each node with a database has a directory below `directory`.

    `members`: how many nodes have one.
    """

    def __init__(self, podman: Storage, switch: Switch, directory: Path, members: int = len(ADDRESSES)) -> None:
        self._podman = podman
        self._switch = switch
        self._dir = directory
        self.cgroup = f"/{directory.name}"
        self.members = ADDRESSES[:members]
        self._ids: dict[str, str] = {}
        self.variables = read_variables(OVERLAY.parent / "logical-ports" / "ovn.env") | read_variables(OVERLAY / "ovn.env")
        for database in DATABASES:
            key = f"USERSPACE_CNI_OVN_{database.upper()}"
            self.variables[key] = ",".join(self.variables[key].split(",")[:members])

    def begin(self) -> None:
        """Give the network the nodes' addresses; no container is started."""
        inside(self._switch.netns, "ip", "link", "set", "lo", "up")
        for address in self.members:
            inside(self._switch.netns, "ip", "address", "add", f"{address}/32", "dev", "lo")

    def stop(self) -> None:
        """End the containers, and take the addresses away."""
        for name in tuple(self._ids):
            self.end(name)
        for address in self.members:
            with suppress(subprocess.CalledProcessError):  # the start failed before it had it
                inside(self._switch.netns, "ip", "address", "del", f"{address}/32", "dev", "lo")

    def remote(self, database: str) -> str:
        """The addresses of all members of a database."""
        return self.variables[f"USERSPACE_CNI_OVN_{database.upper()}"]

    def node(self, address: str) -> Path:
        """The root of the node with this address."""
        made = self._dir / address
        made.mkdir(exist_ok=True)
        return made

    def file(self, address: str, database: str) -> Path:
        """A member's file of a database."""
        return self.node(address) / f"var/lib/ovn/ovn{database}_db.db"

    # containers: NAME is the container's, and at "@" the node's address

    def start(self, *names: str) -> None:
        """Start these containers, as "nb@10.98.0.1", in this order."""
        for name in names:
            container, pod = self._find(name)
            self._ids[name] = self._podman.call("run", "--detach", *self._options, *pod.arguments(container, IMAGE)).strip()

    def start_members(self, *addresses: str) -> None:
        """Start both databases of these nodes."""
        self.start(*(f"{database}@{address}" for address in addresses for database in DATABASES))

    def run_to_end(self, name: str) -> str:
        """Run a container that ends; its output. PodmanError has that of one that fails."""
        container, pod = self._find(name)
        done = self._podman.attempt("run", "--rm", *self._options, *pod.arguments(container, IMAGE))
        if done.returncode:
            raise PodmanError(f"{name}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def end(self, name: str, number: str = "KILL") -> None:
        """End a container by this signal, and remove it."""
        container = self._ids.pop(name)
        self._podman.attempt("kill", f"--signal={number}", container)
        self._podman.call("wait", container)
        self._podman.call("rm", "--force", "--time=0", container)

    def end_members(self, *addresses: str) -> None:
        """Kill both databases of these nodes."""
        for address in addresses:
            for database in DATABASES:
                self.end(f"{database}@{address}")

    def is_ready(self, name: str) -> bool:
        """Whether the container's readiness probe succeeds."""
        container, _ = self._find(name)
        return not self.run_in(name, *container["readinessProbe"]["exec"]["command"]).returncode

    def are_ready(self, *addresses: str) -> bool:
        """Whether those of both databases do."""
        return all(self.is_ready(f"{database}@{address}") for address in addresses for database in DATABASES)

    def run_in(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """What a command did in a container."""
        return self._podman.attempt("exec", self._ids[name], *command)

    def log(self, name: str) -> str:
        done = self._podman.attempt("logs", self._ids[name])
        return done.stdout + done.stderr

    # questions

    def cluster(self, name: str) -> str:
        """What a member says of its cluster."""
        database = name.partition("@")[0]
        done = self.run_in(name, "ovs-appctl", f"--target=/run/ovn/ovn{database}_db.ctl", "cluster/status", DATABASES[database])
        return done.stdout + done.stderr

    def nbctl(self, *args: str) -> str:
        """Output of the image's ovn-nbctl, with all members' addresses."""
        return self._ask("ovn-nbctl", f"--db={self.remote('nb')}", f"--timeout={CTL_SECONDS}", *args)

    def sbctl(self, *args: str) -> str:
        return self._ask("ovn-sbctl", f"--db={self.remote('sb')}", f"--timeout={CTL_SECONDS}", *args)

    def schema(self, database: str) -> str:
        """The version of the schema that the cluster's leader has."""
        return self._ask("ovsdb-client", "--timeout=30", "get-schema-version", self.remote(database), DATABASES[database])

    def _ask(self, *argv: str) -> str:
        """Asked until a member answers: these programs give up at the first that does not."""
        said = ""

        def answered() -> bool:
            nonlocal said
            done = self.run_in(next(iter(self._ids)), *argv)
            said = done.stderr if done.returncode else done.stdout
            return not done.returncode

        try:
            wait_until(answered, what=" ".join(argv))
        except AssertionError as error:
            raise AssertionError(f"{error}: {said}") from error
        return said.rstrip("\n")

    def schema_file(self, database: str) -> str:
        """The image's schema of a database."""
        options = ["--rm", "--network=none", *self._options, "--entrypoint=cat"]
        return self._podman.call("run", *options, IMAGE, f"/usr/share/ovn/ovn-{database}.ovsschema")

    @property
    def _options(self) -> list[str]:
        return [f"--cgroup-parent={self.cgroup}"]

    @cached_property
    def _specs(self) -> Mapping[str, Any]:
        """The pods' specs by the names of their containers."""
        found: dict[str, Any] = {}
        for path in ("databases.yaml", "northd.yaml", "ovn-controller.yaml"):
            # through JSON: what an anchor has twice is two
            spec = json.loads(json.dumps(yaml.safe_load((OVERLAY / path).read_text())))["spec"]["template"]["spec"]
            every: Sequence[Mapping[str, Any]] = (*spec.get("initContainers", ()), *spec["containers"])
            found |= {each["name"]: spec for each in every}
        return found

    def _find(self, name: str) -> tuple[Mapping[str, Any], PodmanPod]:
        container, _, address = name.partition("@")
        root = self.node(address)
        switch = root / "run" / "openvswitch"
        if not switch.exists():
            switch.parent.mkdir(exist_ok=True)
            switch.symlink_to(self._switch.rundir)
        host = PodHost(
            root,
            {"status.hostIP": address, "spec.nodeName": NODE},
            {"userspace-cni-ovn-scripts": SCRIPT},
            {"userspace-cni-ovn": self.variables},
            f"ns:{self._switch.netns}",
        )
        pod = PodmanPod(self._specs[container], host)
        return pod.container(container), pod
