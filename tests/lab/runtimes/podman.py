"""A private podman from Debian's package, with the cni backend, which takes its networks from files.

What cannot be moved: the namespaces' directory /run/netns, which it makes a mount of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from tests.lab.runtimes.containerd_host import RuntimeHost, mount_points
from tests.lab.runtimes.images import unpack_image

_PODMAN_S = 300.0  # loading our image has taken more than a minute on a busy machine
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# Without the limits it asks for more than a machine without CAP_SYS_RESOURCE may give. `env`: networks are also taken down by a
# podman that conmon starts when a container ends, and conmon hands on next to nothing of the environment.
_CONFIG = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[network]
network_backend = "cni"
cni_plugin_dirs = ["{bin}"]
network_config_dir = "{networks}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
env = {env}
"""


class PodmanError(Exception):
    """What podman printed when it failed."""


class Storage:
    """podman with images and containers of its own in the new `directory`; its containers are removed at the end.

    `prefix` is what it is started by. `plugins` and `networks`: where it finds them; `settings`: of its plugins' environment.
    """

    def __init__(
        self, directory: Path, *, prefix: Sequence[str] = (), plugins: str = "", networks: str = "", settings: Sequence[str] = ()
    ) -> None:
        self.directory = directory
        self.directory.mkdir()
        self._prefix = prefix
        config = _CONFIG.format(bin=plugins or directory, networks=networks or directory, env=json.dumps(settings))
        (self.directory / "containers.conf").write_text(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.call("rm", "--all", "--force", "--time=0")

    def call(self, *arguments: str, seconds: float = _PODMAN_S) -> str:
        """Any podman command; its stdout. PodmanError has its stderr."""
        done = self.attempt(*arguments, seconds=seconds)
        if done.returncode:
            raise PodmanError(f"{arguments[0]}: exit {done.returncode}: {done.stderr}")
        return done.stdout

    def attempt(self, *arguments: str, seconds: float = _PODMAN_S) -> subprocess.CompletedProcess[str]:
        """The same, whatever its exit code is."""
        argv = self._argv(*arguments)
        return subprocess.run(argv, env=self._environ, capture_output=True, text=True, timeout=seconds, check=False)

    def _argv(self, *arguments: str) -> list[str]:
        top = self.directory
        own = [f"--root={top}/root", f"--runroot={top}/runroot", f"--tmpdir={top}/tmp", "--storage-driver=overlay"]
        return [*self._prefix, "podman", *own, f"--runtime-flag=root={top}/runc", *arguments]

    @property
    def _environ(self) -> dict[str, str]:
        top = str(self.directory)
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        return {"PATH": _PATH, "CONTAINERS_CONF": f"{top}/containers.conf", "HOME": top, "TMPDIR": top, **proxies}


@contextmanager
def own_storage() -> Iterator[tuple[Storage, Path]]:
    """podman without plugins, and the directory with its files; its containers, images and mounts are removed at the end."""
    with TemporaryDirectory(prefix="uc-images-", dir="/var/tmp") as directory, Storage(Path(directory) / "podman") as podman:
        try:
            yield podman, Path(directory)
        finally:
            for point in mount_points(Path(directory)):
                subprocess.run(["umount", "--lazy", point], check=True)


class Podman(Storage):
    """podman on `host`, with its plugins and networks."""

    def __init__(self, host: RuntimeHost) -> None:
        super().__init__(
            host.directory / "podman",
            prefix=host.command(),
            plugins=str(host.bin),
            networks=str(host.networks_dir),
            settings=[f"{name}={value}" for name, value in host.node.environ.items() if name != "PATH"],
        )
        self.host = host
        self._rootfs = self.directory / "rootfs"
        unpack_image(self._rootfs)

    def run(self, *command: str, networks: str, volumes: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> str:
        """`podman run --detach`, with more `options`; its ID. `volumes` has the host's path of each path in the container."""
        return self.call(*self._run_arguments(command, networks, volumes or {}, options)).strip()

    def begin_run(self, *command: str, networks: str) -> subprocess.Popen[bytes]:
        """Start the same as a process, without waiting for it."""
        argv = self._argv(*self._run_arguments(command, networks, {}))
        null = subprocess.DEVNULL
        return subprocess.Popen(argv, env=self._environ, stdin=null, stdout=null, stderr=null)

    def run_in(self, container: str, *command: str) -> str:
        """`podman exec`; what the command printed."""
        return self.call("exec", container, *command)

    def remove(self, container: str) -> None:
        """`podman rm`, whether it runs or not."""
        self.call("rm", "--force", "--time=0", container)

    @contextmanager
    def forgotten(self, namespace: str) -> Iterator[None]:
        """Unmount what a killed podman left: at once the mounts that prevent the
        container's removal, at the end its `namespace`.
        """
        assert namespace.startswith("/run/netns/netns-")
        for point in mount_points(self.directory / "root" / "overlay-containers"):
            subprocess.run(["umount", point], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", namespace], check=True)
            Path(namespace).unlink()

    def networks(self, container: str) -> dict[str, Any]:
        """The container's networks by name, as `podman inspect` reports them."""
        [shown] = json.loads(self.call("container", "inspect", container))
        networks: dict[str, Any] = shown["NetworkSettings"]["Networks"]
        return networks

    def _run_arguments(
        self, command: Sequence[str], networks: str, volumes: Mapping[str, str], more: Sequence[str] = ()
    ) -> list[str]:
        options = [*more, *(f"--volume={outside}:{inside}" for inside, outside in volumes.items())]
        options += [f"--cgroup-parent={self.host.cgroup}", f"--network={networks}"]
        return ["run", "--detach", *options, "--rootfs", str(self._rootfs), *command]
