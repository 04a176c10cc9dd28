"""A private containerd, the first in PATH, with everything that it keeps below one directory.

What cannot be moved there: its shims' sockets (/run/containerd) and libcni's cache of results (/var/lib/cni).
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab.runtimes.containerd_host import RuntimeHost
from tests.lab.runtimes.cri import Cri, CriError
from tests.lab.runtimes.images import IMAGE, write_image

BROKEN = "broken"
"""A runtime handler whose program is missing: containers are set up, and then cannot be started."""
_STOP_S = 60.0
_CTR_S = 60.0
_CONFIG = """\
version = 2
root = "{top}/root"
state = "{top}/state"
disabled_plugins = [{disabled}]
[grpc]
  address = "{top}/containerd.sock"
[debug]
  level = "warn"
[ttrpc]
  address = "{top}/containerd.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{top}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  disable_tcp_service = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  {cdi}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{bin}"
    conf_dir = "{networks}"
    max_conf_num = {count}
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{top}/runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{broken}]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{broken}.options]
      Root = "{top}/runc"
      BinaryName = "/no/such/runc"
"""
_DISABLED = (
    "snapshotter.v1.aufs",
    "snapshotter.v1.btrfs",
    "snapshotter.v1.devmapper",
    "snapshotter.v1.zfs",
    "internal.v1.tracing",
)
# Where ctr calls plugins it knows no other directories than these, and they are the host's: so it gets a view of its own. "/" is
# made private first, or these mounts would appear on the whole host where it is shared. What is shared below it (`shared_mounts`)
# stays so.
_CTR = """\
top=$1 networks=$2 bin=$3; shift 3
mount --make-private /
for of in etc opt; do
    mkdir -p "$top/$of" "$top/$of-work"
    mount -t overlay overlay -o "lowerdir=/$of,upperdir=$top/$of,workdir=$top/$of-work" "/$of"
done
mkdir -p /etc/cni/net.d /opt/cni/bin
mount --bind "$networks" /etc/cni/net.d
mount --bind "$bin" /opt/cni/bin
exec "$@"
"""


class Containerd:
    """containerd on `host`, ended with its sandboxes at the end; `with Containerd(host) as containerd: containerd.start()`.

    `cdi`: the directory of its specifications of devices, for a containerd that knows such.
    """

    def __init__(self, host: RuntimeHost, cdi: Path | None = None) -> None:
        self.host = host
        self._cdi = f'enable_cdi = true\n  cdi_spec_dirs = ["{cdi}"]' if cdi else ""
        self.directory = host.directory / "containerd"
        self.directory.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._cri: Cri | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def cri(self) -> Cri:
        """The client of the daemon as it was started last."""
        assert self._cri, "containerd was not started"
        return self._cri

    def start(self, *lists: Mapping[str, Any]) -> Cri:
        """Start it; every sandbox joins each of the networks `lists`, as eth0, eth1 and so on. None given: those it had."""
        if lists:
            self.host.write_networks(*lists)
        config = self.directory / "config.toml"
        config.write_text(
            _CONFIG.format(
                top=self.directory,
                disabled=", ".join(f'"io.containerd.{name}"' for name in _DISABLED),
                image=IMAGE,
                bin=self.host.bin,
                networks=self.host.networks_dir,
                count=len(list(self.host.networks_dir.iterdir())),
                broken=BROKEN,
                cdi=self._cdi,
            )
        )
        argv = self.host.command("containerd", "--config", str(config))
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, env=self.host.environ, stdout=log, stderr=log)
        self._cri = Cri(self.directory / "containerd.sock", self.host.cgroup)
        self._cri.await_ready()
        archive = self.directory / "image.tar"
        if not archive.exists():
            write_image(archive)
            for namespace in ("k8s.io", "default"):
                self._ctr_now("--namespace", namespace, "image", "import", str(archive))
        return self._cri

    def kill(self) -> None:
        """SIGKILL: its shims, and the plugins that it was waiting for, continue."""
        assert self._process
        self._process.kill()
        self._process.wait(_STOP_S)
        self.cri.close()

    def stop(self) -> None:
        """End sandboxes and daemon, if it runs."""
        if self._process is None or self._process.poll() is not None:
            return
        try:
            for name in self.ctr_tasks():
                self._ctr_now("task", "delete", "--force", name)
            for sandbox in self.cri.sandboxes():
                self.cri.stop(sandbox)
                self.cri.remove(sandbox)
        except CriError as error:
            print(f"containerd: {error}")
        finally:
            self.cri.close()
            self._process.terminate()
            self._process.wait(_STOP_S)
        print((self.directory / "log").read_text(errors="replace"))

    def ctr_run(self, name: str, *command: str) -> subprocess.Popen[str]:
        """`ctr run --rm --cni`: a container on the first network. ctr itself calls the plugins, in its own mount namespace."""
        run = ["run", "--rm", "--cni", f"--cgroup={self.host.cgroup}/{name}", f"--runc-root={self.directory}/runc"]
        run += [f"--fifo-dir={self.directory}/fifo"]
        argv = self._ctr_with_plugins(*run, IMAGE, name, *command)
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=self.host.environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)

    def ctr_tasks(self) -> dict[str, str]:
        """The containers of `ctr run` by name, and their status: CREATED until their network is set up, then RUNNING."""
        rows = [line.split() for line in self._ctr_now("task", "list").splitlines()[1:]]
        return {name: status for name, _, status in rows}

    def ctr_kill(self, name: str) -> None:
        """SIGKILL for a container of `ctr run`. A ctr of containerd 1.7 or newer calls the plugins for DEL before that."""
        self._done(self._ctr_with_plugins("task", "kill", "--signal", "SIGKILL", name))

    def _ctr(self, *arguments: str) -> list[str]:
        return ["ctr", "--address", str(self.directory / "containerd.sock"), *arguments]

    def _ctr_with_plugins(self, *arguments: str) -> list[str]:
        """A ctr that may call plugins: on the host, with the host's networks."""
        view = ["unshare", "--mount", "--propagation=unchanged", "sh", "-ec", _CTR, "view"]
        view += [str(self.directory), str(self.host.networks_dir), str(self.host.bin)]
        return self.host.command(*view, *self._ctr(*arguments))

    def _ctr_now(self, *arguments: str) -> str:
        return self._done(self._ctr(*arguments))

    def _done(self, argv: Sequence[str]) -> str:
        """What a command of this runtime prints."""
        done = subprocess.run(argv, env=self.host.environ, capture_output=True, text=True, timeout=_CTR_S, check=False)
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout
