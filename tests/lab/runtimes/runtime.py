"""A container runtime as the plugin sees one: what libcni 1.3 does around each call, with real processes.

`call` runs one plugin once; `Runtime` is libcni's CNIConfig on a directory of configurations, with its injection of keys, its
cache and its order of calls; `netns` makes a sandbox; `recordings` reads what real callers sent. It must know nothing of the
plugin under test and share no code with it: it is the other side of the specification.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, cast

CURRENT = "1.1.0"
"""libcni's own version: it never asks a plugin for a higher one."""
_ONLY_SINCE_1_0 = ("mtu", "socketPath", "pciID")
_STRUCTS: Mapping[str, tuple[str, ...]] = {
    "interfaces": ("name", "mac", "mtu", "sandbox", "socketPath", "pciID"),
    "ips": ("version", "interface", "address", "gateway"),
    "routes": ("dst", "gw", "mtu", "advmss", "priority", "table", "scope"),
}


Pipe = IO[bytes] | Connection


@dataclass(frozen=True)
class Call:
    """One run of one plugin.

    `status` is the exit status, negative the signal that ended it; `wall` the seconds until it and its pipes were done, `cpu` the
    processor seconds of it and of the children it waited for.
    """

    plugin: str
    command: str | None
    stdin: bytes
    stdout: bytes
    stderr: bytes
    status: int
    wall: float
    cpu: float

    @property
    def document(self) -> dict[str, Any]:
        """Stdout, which must be one JSON object from its first to its last byte."""
        document = json.loads(self.stdout)
        if not isinstance(document, dict):
            raise TypeError(f"stdout is no JSON object: {self.stdout!r}")
        return document

    @property
    def code(self) -> int | None:
        """The code of the CNI error on stdout, None when it succeeded."""
        return None if self.status == 0 else int(self.document["code"])


class CallFailed(Exception):
    """What libcni returns when a plugin fails: its message, with the plugin's own code, or 0 when it gave none."""

    def __init__(self, message: str, call: Call, code: int = 0, details: str = "") -> None:
        super().__init__(f"{message}; {details}" if details else message)
        self.message = message
        self.call = call
        self.code = code
        self.details = details


class NetworkError(Exception):
    """A configuration that libcni would not use, or a plugin that it cannot find; no process was started."""


def call(
    plugin: str | Sequence[str], command: str | None, env: Mapping[str, str], stdin: bytes = b"", timeout: float = 60.0
) -> Call:
    """Run a plugin (a path, or an argument list) with `env` as its whole environment, but for CNI_COMMAND if `command` is given.

    Returns when it has ended and its stdout and stderr are closed, by its children too: libcni waits for that. Past `timeout`
    seconds it gets SIGKILL, and only it.
    """
    arguments = [plugin] if isinstance(plugin, str) else list(plugin)
    environment = dict(env) if command is None else {**env, "CNI_COMMAND": command}
    began = time.monotonic()
    pipe = subprocess.PIPE
    process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0)
    pipes = cast("tuple[IO[bytes], IO[bytes], IO[bytes]]", (process.stdin, process.stdout, process.stderr))
    try:
        with open(os.pidfd_open(process.pid), "rb") as ended:  # noqa: PTH123
            # Popen's own would reap one that has just ended
            kill = partial(signal.pidfd_send_signal, ended.fileno(), signal.SIGKILL)
            heard = converse(pipes, ended.fileno(), kill, stdin, began + timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    _, wait_status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(wait_status)
    wall, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    return Call(arguments[-1], command, stdin, heard["out"], heard["err"], process.returncode, wall, cpu)


def converse(
    pipes: tuple[Pipe, Pipe, Pipe], end: int, kill: Callable[[], object], stdin: bytes, until: float | None
) -> dict[str, bytes]:
    """Send stdin, collect both outputs to their ends ("out", "err"), and wait for the process to end, which is not reaped.

    `end` is a descriptor that can be read once it has ended; `kill` is called when the time is `until`.
    """
    heard = {"out": b"", "err": b""}
    unsent = memoryview(stdin)
    to, out, err = pipes
    with to, out, err, selectors.DefaultSelector() as selector:
        os.set_blocking(to.fileno(), False)
        selector.register(to, selectors.EVENT_WRITE, "in")
        for stream, name in ((out, "out"), (err, "err"), (end, "ended")):
            selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            ready = selector.select(None if until is None else max(0.0, until - time.monotonic()))
            if not ready:
                kill()
                until = None
            for key, _ in ready:
                if key.data == "in":
                    with suppress(BrokenPipeError):
                        unsent = unsent[os.write(key.fd, unsent) :]
                        if unsent:
                            continue
                    selector.unregister(to)
                    to.close()
                elif key.data == "ended":
                    selector.unregister(end)
                else:
                    chunk = os.read(key.fd, 65536)
                    heard[key.data] += chunk
                    if not chunk:
                        selector.unregister(key.fileobj)
    return heard


@dataclass(frozen=True)
class Network:
    """A network configuration list, as libcni has parsed it; `raw` is the text it keeps in the cache."""

    name: str
    version: str
    plugins: tuple[dict[str, Any], ...]
    raw: bytes
    disable_check: bool = False
    disable_gc: bool = False


@dataclass(frozen=True)
class Attachment:
    """The runtime's side of one attachment: what becomes the CNI_* variables and runtimeConfig."""

    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: str = ""
    capability_args: Mapping[str, Any] = field(default_factory=dict)


class Runtime:
    """libcni on the configurations in `conf_dir`, with plugins from `cni_path` and results cached in `cache_dir`/results.

    `environ` is the runtime's environment, which plugins get as a whole. With `host_netns` the plugins are started in that
    network namespace, so that what they do to their host stays in it. Every run is appended to `calls`.
    """

    def __init__(
        self, conf_dir: Path, cni_path: Sequence[Path], cache_dir: Path, environ: Mapping[str, str], host_netns: str | None = None
    ) -> None:
        self.conf_dir = conf_dir
        self.cni_path = tuple(cni_path)
        self.environ = dict(environ)
        self.calls: list[Call] = []
        self._cache = cache_dir / "results"
        self._enter = [str(shutil.which("nsenter")), f"--net={host_netns}"] if host_netns else []

    def add(
        self,
        list_name: str,
        container_id: str,
        netns: str,
        ifname: str,
        args: str = "",
        capability_args: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """ADD of the whole chain; the last result, which is cached. It stops at the first failure and undoes nothing."""
        network = self.network(list_name)
        attachment = Attachment(container_id, netns, ifname, args, capability_args or {})
        result: dict[str, Any] | None = None
        for plugin in network.plugins:
            stdin = _stdin(network, plugin, attachment, {"prevResult": result})
            made = self._succeed(plugin, "ADD", attachment, stdin)
            result = _reencoded(_result_of(made, network.version))
        self._remember(network, attachment, result)
        return result or {}

    def delete(
        self,
        list_name: str,
        container_id: str,
        netns: str,
        ifname: str,
        args: str = "",
        capability_args: Mapping[str, Any] | None = None,
    ) -> None:
        """DEL in reverse; from 0.4.0 on with the cached result. It stops at the first failure.

        The cache is removed when all succeeded.
        """
        self._delete(self.network(list_name), Attachment(container_id, netns, ifname, args, capability_args or {}))

    def check(
        self,
        list_name: str,
        container_id: str,
        netns: str,
        ifname: str,
        args: str = "",
        capability_args: Mapping[str, Any] | None = None,
    ) -> None:
        """CHECK in order with the cached result, if there is one; nothing if `disableCheck` is set."""
        network = self.network(list_name)
        if _order(network.version) < _order("0.4.0"):
            raise NetworkError(f"configuration version {network.version!r} does not support CHECK")
        if network.disable_check:
            return
        attachment = Attachment(container_id, netns, ifname, args, capability_args or {})
        cached = self._cached_result(network, attachment)
        for plugin in network.plugins:
            self._succeed(plugin, "CHECK", attachment, _stdin(network, plugin, attachment, {"prevResult": cached}))

    def gc(self, list_name: str, valid: Sequence[tuple[str, str]] | None, *, with_key: bool = True) -> None:
        """DEL of every cached attachment of the network that is not in `valid` ((container ID, ifname)), then GC from 1.1.0 on.

        Goes on over failures and raises them as a group. `valid=None` sends null, as CRI-O does for a network without pods;
        `with_key=False` leaves the keys out, as `cnitool gc` does.
        """
        network = self.network(list_name)
        if network.disable_gc:
            return
        errors: list[Exception] = []
        for stale in self._cached_attachments(network):
            if (stale.container_id, stale.ifname) not in (valid or ()):
                try:
                    self._delete(network, stale)
                except (CallFailed, NetworkError) as error:
                    errors.append(error)
        if _order(network.version) >= _order("1.1.0"):
            listed = None if valid is None else [{"containerID": container, "ifname": ifname} for container, ifname in valid]
            extra = {"cni.dev/attachments": listed, "cni.dev/valid-attachments": listed} if with_key else {}
            for plugin in network.plugins:
                stdin = _marshal({**plugin, "name": network.name, "cniVersion": network.version, **extra})
                try:
                    self._succeed(plugin, "GC", Attachment(), stdin)
                except (CallFailed, NetworkError) as error:
                    errors.append(error)
        if errors:
            raise ExceptionGroup("gc", errors)

    def status(self, list_name: str) -> None:
        """STATUS of each plugin up to the first that fails; below 1.1.0 no plugin is called."""
        network = self.network(list_name)
        if _order(network.version) >= _order("1.1.0"):
            for plugin in network.plugins:
                self._succeed(plugin, "STATUS", Attachment(), _stdin(network, plugin, Attachment(), {}))

    def version(self, plugin_type: str) -> tuple[str, ...]:
        """The supportedVersions of a plugin, asked with the dummy variables and the short stdin that libcni uses."""
        probe = Attachment(netns="dummy", ifname="dummy")
        stdin = _marshal({"cniVersion": CURRENT})
        answer = self._succeed({"type": plugin_type}, "VERSION", probe, stdin).document
        if not answer.get("cniVersion") or not answer.get("supportedVersions"):
            raise NetworkError(f"{plugin_type} answers VERSION without cniVersion or supportedVersions: {answer}")
        return tuple(answer["supportedVersions"])

    def network(self, name: str) -> Network:
        """The first .conflist of this name, else the first .conf or .json, made into a list of one."""
        for path in sorted(self.conf_dir.glob("*.conflist")):
            raw = path.read_bytes()
            found = json.loads(raw)
            if found.get("name") == name:
                return _parsed(found, raw, self._folder_plugins(found))
        for path in sorted([*self.conf_dir.glob("*.conf"), *self.conf_dir.glob("*.json")]):
            plugin = json.loads(path.read_bytes())
            if plugin.get("name") == name:
                found = {"name": name, "cniVersion": plugin.get("cniVersion", ""), "plugins": [plugin]}
                return _parsed(found, _marshal(found), [])
        raise NetworkError(f"no net configuration with name {name!r} in {self.conf_dir}")

    def cache_file(self, list_name: str, container_id: str, ifname: str) -> Path:
        """Where the result of an attachment is kept."""
        return self._cache / f"{list_name}-{container_id}-{ifname}"

    def _folder_plugins(self, found: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The plugins in <conf dir>/<network>/*.conf, unless the list says that it has all of its own."""
        if _boolean(found, "loadOnlyInlinedPlugins"):
            return []
        return [json.loads(path.read_bytes()) for path in sorted((self.conf_dir / str(found["name"])).glob("*.conf"))]

    def _succeed(self, plugin: Mapping[str, Any], command: str, attachment: Attachment, stdin: bytes) -> Call:
        """Run one plugin with the six variables; CallFailed with libcni's words when it fails."""
        path = _find(str(plugin.get("type", "")), self.cni_path)
        variables = {
            "CNI_CONTAINERID": attachment.container_id,
            "CNI_NETNS": attachment.netns,
            "CNI_ARGS": attachment.args,
            "CNI_IFNAME": attachment.ifname,
            "CNI_PATH": "dummy" if command == "VERSION" else ":".join(map(str, self.cni_path)),
        }
        made = call([*self._enter, path], command, {**self.environ, **variables}, stdin)
        self.calls.append(made)
        if made.status != 0:
            raise _failure(made)
        return made

    def _delete(self, network: Network, attachment: Attachment) -> None:
        cached = self._cached_result(network, attachment) if _order(network.version) >= _order("0.4.0") else None
        for plugin in reversed(network.plugins):
            self._succeed(plugin, "DEL", attachment, _stdin(network, plugin, attachment, {"prevResult": cached}))
        self.cache_file(network.name, attachment.container_id, attachment.ifname).unlink(missing_ok=True)

    def _remember(self, network: Network, attachment: Attachment, result: Mapping[str, Any] | None) -> None:
        entry = {
            "kind": "cniCacheV1",
            "containerId": attachment.container_id,
            "config": base64.b64encode(network.raw).decode(),
            "ifName": attachment.ifname,
            "networkName": network.name,
            "netns": attachment.netns,
            "cniArgs": [item.split("=", 1) for item in attachment.args.split(";") if item],
            "capabilityArgs": dict(attachment.capability_args),
            "result": result,
        }
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.cache_file(network.name, attachment.container_id, attachment.ifname)
        path.touch(mode=0o600)
        path.write_bytes(_marshal(entry))

    def _cached_result(self, network: Network, attachment: Attachment) -> dict[str, Any] | None:
        path = self.cache_file(network.name, attachment.container_id, attachment.ifname)
        if not path.exists():
            return None
        return _converted(json.loads(path.read_bytes())["result"], network.version)

    def _cached_attachments(self, network: Network) -> list[Attachment]:
        entries = [json.loads(path.read_bytes()) for path in sorted(self._cache.glob("*"))]
        return [
            Attachment(
                entry["containerId"],
                entry["netns"],
                entry["ifName"],
                ";".join("=".join(item) for item in entry["cniArgs"]),
                entry["capabilityArgs"],
            )
            for entry in entries
            if entry["networkName"] == network.name
        ]


@dataclass(frozen=True)
class Recording:
    """One call of a real caller: its CNI_* variables and the bytes of its stdin."""

    env: Mapping[str, str]
    stdin: bytes


def recordings(path: Path) -> Iterator[Recording]:
    """The calls in a JSONL file whose lines have `env` and `stdin`."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            yield Recording(entry["env"], entry["stdin"].encode())


@contextmanager
def netns(name: str | None = None, below: Path | None = None) -> Iterator[str]:
    """A new network namespace, bind-mounted in a directory of its own as runtimes do; its path. Needs root."""
    directory = Path(tempfile.mkdtemp(prefix="netns-", dir=below))
    path = directory / (name or f"cni-{uuid.uuid4()}")
    path.touch()
    try:
        subprocess.run(["unshare", f"--net={path}", "true"], check=True)
        try:
            yield str(path)
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
    finally:
        path.unlink(missing_ok=True)
        directory.rmdir()


def _failure(made: Call) -> CallFailed:
    """The error of a plugin that did not exit with 0, as invoke.RawExec reads it."""
    if not made.stdout:
        if not made.stderr:
            how = f"signal: {signal.Signals(-made.status).name}" if made.status < 0 else f"exit status {made.status}"
            return CallFailed(f"netplugin failed with no error message: {how}", made)
        return CallFailed(f"netplugin failed: {made.stderr.decode(errors='replace')!r}", made)
    try:
        error = made.document
        code, message, details = error.get("code", 0), error.get("msg", ""), error.get("details", "")
        if not (isinstance(code, int) and code >= 0 and isinstance(message, str) and isinstance(details, str)):
            raise TypeError("code, msg or details is of the wrong type")
    except (ValueError, TypeError) as problem:
        text = made.stdout.decode(errors="replace")
        return CallFailed(f"netplugin failed but error parsing its diagnostic message {text!r}: {problem}", made)
    return CallFailed(message, made, code, details)


def _result_of(made: Call, version: str) -> dict[str, Any]:
    """The result on stdout, with the configuration's version if it has none."""
    try:
        document = made.document
    except (ValueError, TypeError) as problem:
        raise CallFailed(f"unable to decode the result: {problem}", made) from problem
    return document if document.get("cniVersion") else {**document, "cniVersion": version}


def _reencoded(result: Mapping[str, Any]) -> dict[str, Any]:
    """`result` as libcni's structs keep it: without unknown keys, and without those that its version lacks."""
    old = _order(result["cniVersion"]) < _order("1.0.0")
    encoded: dict[str, Any] = {"cniVersion": result["cniVersion"]}
    for name, keys in _STRUCTS.items():
        known = [key for key in keys if not (old and key in _ONLY_SINCE_1_0 and name == "interfaces")]
        entries = [{key: entry[key] for key in known if entry.get(key) not in (None, "")} for entry in result.get(name) or []]
        if entries:
            encoded[name] = entries
    dns = {
        key: value for key, value in (result.get("dns") or {}).items() if key in ("nameservers", "domain", "search", "options")
    }
    if dns or old:
        encoded["dns"] = dns
    return encoded


def _converted(result: Mapping[str, Any], version: str) -> dict[str, Any]:
    """`result` at another version: 1.0.0 and later have no ips[].version, earlier ones must have it."""
    converted = _reencoded({**result, "cniVersion": version})
    for ip in converted.get("ips", ()):
        if _order(version) >= _order("1.0.0"):
            ip.pop("version", None)
        else:
            ip["version"] = "6" if ":" in ip["address"] else "4"
    return converted


def _stdin(network: Network, plugin: Mapping[str, Any], attachment: Attachment, extra: Mapping[str, Any]) -> bytes:
    """The plugin's configuration with libcni's injections: name, version, `extra` unless None, and the capabilities declared."""
    config = {**plugin, "name": network.name, "cniVersion": network.version}
    config |= {key: value for key, value in extra.items() if value is not None}
    declared = [name for name, supported in (plugin.get("capabilities") or {}).items() if supported]
    runtime = {name: attachment.capability_args[name] for name in declared if name in attachment.capability_args}
    return _marshal({**config, "runtimeConfig": runtime} if runtime else config)


def _marshal(value: object) -> bytes:
    """JSON as Go's json.Marshal writes it: sorted keys, no blanks, UTF-8, and <, > and & escaped."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def _parsed(found: Mapping[str, Any], raw: bytes, more: Sequence[dict[str, Any]]) -> Network:
    candidates = [found.get("cniVersion") or "0.1.0", *found.get("cniVersions", ())]
    usable = [version for version in candidates if _order(version) <= _order(CURRENT)] or candidates
    plugins = (*found.get("plugins", ()), *more)
    if not plugins:
        raise NetworkError(f"error parsing configuration list: no plugins in {found.get('name')!r}")
    disabled = _boolean(found, "disableCheck"), _boolean(found, "disableGC")
    return Network(found["name"], max(usable, key=_order), plugins, raw, *disabled)


def _boolean(found: Mapping[str, Any], key: str) -> bool:
    value = found.get(key, False)
    if str(value).lower() not in ("true", "false"):
        raise NetworkError(f"error parsing configuration list: invalid value {value!r} for {key}")
    return str(value).lower() == "true"


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _find(plugin: str, cni_path: Sequence[Path]) -> str:
    if not plugin or "/" in plugin:
        raise NetworkError(f"invalid plugin name: {plugin!r}")
    for directory in cni_path:
        if (directory / plugin).is_file():
            return str(directory / plugin)
    raise NetworkError(f"failed to find plugin {plugin!r} in path {[str(directory) for directory in cni_path]}")
