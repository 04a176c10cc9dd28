"""The agents' DaemonSet on podman: its pod as deploy/cluster/base has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.lab.kube.podman_pod import PodHost, PodmanPod
from tests.lab.runtimes.dockerfile import ROOT

CLUSTER = ROOT / "deploy" / "cluster"
BASE = CLUSTER / "base"
MANIFEST = BASE / "daemonset.yaml"
CONFIG = BASE / "config.toml"
"""The source of the ConfigMap."""
NODE_NAME = "node-of-the-test"


class DaemonSet(PodmanPod):
    """The manifest's pod on the host whose root is the directory `host`, and whose own settings file is there."""

    def __init__(self, host: Path) -> None:
        spec: Mapping[str, Any] = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
        super().__init__(spec, PodHost(host, {"spec.nodeName": NODE_NAME}, {"userspace-cni-settings": CONFIG}))

    @property
    def install(self) -> Mapping[str, Any]:
        """The container that runs first, and ends."""
        return self.container("install")

    @property
    def agent(self) -> Mapping[str, Any]:
        return self.container("agent")

    def probe(self, kind: str) -> str:
        """The page that `startupProbe`, `livenessProbe` or `readinessProbe` asks for; where it does is the host's own."""
        return str(self.agent[kind]["httpGet"]["path"])
