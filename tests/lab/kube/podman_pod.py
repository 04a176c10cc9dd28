"""A pod of the manifests on podman: what they say of its containers, as podman's arguments.

The manifests themselves are tested: no command, mount, variable or privilege is repeated here. Anything in them that is not
translated is an error, so that nothing is silently left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_PROPAGATION: Final = {"None": "rprivate", "HostToContainer": "rslave", "Bidirectional": "rshared"}
_OF_THE_KUBELET: Final = {"imagePullPolicy", "livenessProbe", "name", "ports", "readinessProbe", "startupProbe"}
"""Keys that do not matter for how the container is made."""
_REFERENCE: Final = re.compile(r"\$\((\w+)\)")


@dataclass(frozen=True)
class PodHost:
    """Where a pod runs. `root`: the directory that is the host's root. `fields`: values of its object by their paths.

    `files`: by the name of a ConfigMap, the file that is its content. `variables`: the same for those that become variables.
    `network`: podman's for pods in the host's.
    """

    root: Path
    fields: Mapping[str, str]
    files: Mapping[str, Path] = field(default_factory=dict)
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    network: str = "host"


class PodmanPod:
    """The pod of a manifest's template `spec` on this host."""

    def __init__(self, spec: Mapping[str, Any], host: PodHost) -> None:
        self._spec = spec
        self._host = host

    def container(self, name: str) -> Mapping[str, Any]:
        """One of its containers."""
        every = (*self._spec.get("initContainers", ()), *self._spec["containers"])
        [found] = [each for each in every if each["name"] == name]
        return dict(found)

    def arguments(self, container: Mapping[str, Any], image: str) -> list[str]:
        """Options of `podman run` for this container, the image, and the container's arguments."""
        left = {key: value for key, value in container.items() if key not in _OF_THE_KUBELET}
        assert left.pop("image")
        options = [
            "--pid=host" if self._spec.get("hostPID") else "--pid=private",
            f"--network={self._host.network}" if self._spec.get("hostNetwork") else "--network=none",
        ]
        variables = self._variables(left.pop("env", ()), left.pop("envFrom", ()))
        options += [f"--env={name}={value}" for name, value in variables.items()]
        options += [f"--volume={self._volume(mount)}" for mount in left.pop("volumeMounts", ())]
        options += _privileges(left.pop("securityContext", {}))
        options += _limits(left.pop("resources", {}))
        program, *more = [_expanded(word, variables) for word in (*left.pop("command", ("",)), *left.pop("args", ()))]
        assert left == {}, f"not translated to podman: {left}"
        return [*options, *([f"--entrypoint={program}"] if program else []), image, *more]

    def _variables(self, entries: Any, sources: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in sources:
            assert set(source) == {"configMapRef"}
            found |= self._host.variables[source["configMapRef"]["name"]]
        for entry in entries:
            path = "" if "value" in entry else entry["valueFrom"]["fieldRef"]["fieldPath"]
            found[entry["name"]] = self._host.fields[path] if path else entry["value"]
        return found

    def _volume(self, mount: Mapping[str, Any]) -> str:
        [volume] = [volume for volume in self._spec["volumes"] if volume["name"] == mount["name"]]
        mode = "ro" if mount.get("readOnly") else "rw"
        if "configMap" in volume:
            file = self._host.files[volume["configMap"]["name"]]
            return f"{file}:{mount['mountPath']}/{file.name}:{mode}"
        if "emptyDir" in volume:
            source = self._host.root / "emptyDir" / volume["name"]
            source.mkdir(parents=True, exist_ok=True)
        else:
            source = self._host.root / volume["hostPath"]["path"].lstrip("/")
            if volume["hostPath"]["type"] == "DirectoryOrCreate":
                source.mkdir(parents=True, exist_ok=True)
        assert source.is_dir()
        return f"{source.resolve()}:{mount['mountPath']}:{mode},{_PROPAGATION[mount.get('mountPropagation', 'None')]}"


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """The word as the kubelet gives it to the container."""
    return _REFERENCE.sub(lambda match: variables[match[1]], word)


def _privileges(context: Mapping[str, Any]) -> list[str]:
    left = dict(context)
    options = ["--privileged"] if left.pop("privileged", False) else []
    if left.pop("allowPrivilegeEscalation", True) is False:
        options.append("--security-opt=no-new-privileges")
    if left.pop("readOnlyRootFilesystem", False):
        options += ["--read-only", "--read-only-tmpfs=false"]
    options += [f"--cap-drop={name}" for name in left.pop("capabilities", {"drop": []})["drop"]]
    assert left == {}, f"not translated to podman: {left}"
    return options


def _limits(resources: Mapping[str, Any]) -> list[str]:
    limits = resources.get("limits", {})
    assert set(limits) <= {"memory"}
    return [f"--memory={limits['memory'].removesuffix('i').lower()}"] if limits else []
