"""The DaemonSet's pod on podman: what deploy/cluster/base says of its containers, as podman's arguments.

The manifest itself is tested: no mount, variable, argument or privilege is repeated here. Anything in it that is not translated
is an error, so that nothing is silently left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.lab.runtimes.dockerfile import ROOT

CLUSTER = ROOT / "deploy" / "cluster"
BASE = CLUSTER / "base"
MANIFEST = BASE / "daemonset.yaml"
CONFIG = BASE / "config.toml"
"""The source of the ConfigMap."""
NODE_NAME = "node-of-the-test"
_PROPAGATION = {"None": "rprivate", "HostToContainer": "rslave", "Bidirectional": "rshared"}
_FIELDS = {"spec.nodeName": NODE_NAME}
_OF_THE_KUBELET = {"imagePullPolicy", "livenessProbe", "name", "ports", "readinessProbe", "startupProbe"}
"""Keys that do not matter for how the container is made."""


class DaemonSet:
    """The manifest's pod on the host whose root is the directory `host`, and whose own settings file is there."""

    def __init__(self, host: Path) -> None:
        self._pod: Mapping[str, Any] = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]["spec"]
        self._host = host

    @property
    def install(self) -> Mapping[str, Any]:
        """The container that runs first, and ends."""
        [container] = self._pod["initContainers"]
        return dict(container)

    @property
    def agent(self) -> Mapping[str, Any]:
        [container] = self._pod["containers"]
        return dict(container)

    def probe(self, kind: str) -> str:
        """The page that `startupProbe`, `livenessProbe` or `readinessProbe` asks for; where it does is the host's own."""
        return str(self.agent[kind]["httpGet"]["path"])

    def arguments(self, container: Mapping[str, Any], image: str) -> list[str]:
        """Options of `podman run` for this container, the image, and the container's arguments."""
        left = {key: value for key, value in container.items() if key not in _OF_THE_KUBELET}
        assert left.pop("image")
        options = [
            "--pid=host" if self._pod["hostPID"] else "--pid=private",
            "--network=host" if self._pod["hostNetwork"] else "--network=none",
        ]
        options += [f"--env={_variable(entry)}" for entry in left.pop("env", ())]
        options += [f"--volume={self._volume(mount)}" for mount in left.pop("volumeMounts")]
        options += _privileges(left.pop("securityContext", {}))
        options += _limits(left.pop("resources"))
        arguments = left.pop("args")
        assert left == {}, f"not translated to podman: {left}"
        return [*options, image, *arguments]

    def _volume(self, mount: Mapping[str, Any]) -> str:
        [volume] = [volume for volume in self._pod["volumes"] if volume["name"] == mount["name"]]
        mode = "ro" if mount.get("readOnly") else "rw"
        if "configMap" in volume:
            return f"{CONFIG}:{mount['mountPath']}/{CONFIG.name}:{mode}"
        source = self._host / volume["hostPath"]["path"].lstrip("/")
        if volume["hostPath"]["type"] == "DirectoryOrCreate":
            source.mkdir(parents=True, exist_ok=True)
        assert source.is_dir()
        return f"{source}:{mount['mountPath']}:{mode},{_PROPAGATION[mount.get('mountPropagation', 'None')]}"


def _variable(entry: Mapping[str, Any]) -> str:
    value = entry["value"] if "value" in entry else _FIELDS[entry["valueFrom"]["fieldRef"]["fieldPath"]]
    return f"{entry['name']}={value}"


def _privileges(context: Mapping[str, Any]) -> list[str]:
    assert set(context) <= {"privileged"}
    return ["--privileged"] if context.get("privileged") else []


def _limits(resources: Mapping[str, Any]) -> list[str]:
    limits = resources.get("limits", {})
    assert set(limits) <= {"memory"}
    return [f"--memory={limits['memory'].removesuffix('i').lower()}"] if limits else []
