"""One of OVN's databases by itself, without OVN: an ovsdb-server at a unix socket, and on loopback with and without TLS."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final, Literal

from tests.lab.ovn.central import SCHEMAS
from tests.lab.ovn.started import Server, run_program
from tests.lab.switch.switch import CTL_SECONDS, listens, wait_until

Kind = Literal["unix", "tcp", "ssl"]
_ADDRESSES: Final = {"tcp": "127.0.0.1", "ssl": "127.0.0.2"}
"""A different address for each kind, by which the server's log names it."""


class Authority:
    """A certificate authority below `directory`; `sign` makes keys and their certificates."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        directory.mkdir()
        self.certificate = f"{directory}/ca.pem"
        self._openssl("req", "-x509", *_new_key(f"{directory}/ca.key"), "-out", self.certificate, "-subj", "/CN=ca", "-days", "2")

    def sign(self, name: str) -> tuple[str, str]:
        """The files of a new key, and of its certificate."""
        key, request, certificate = (f"{self._dir}/{name}.{end}" for end in ("key", "csr", "pem"))
        self._openssl("req", *_new_key(key), "-out", request, "-subj", f"/CN={name}")
        authority = ("-CA", self.certificate, "-CAkey", f"{self._dir}/ca.key", "-CAcreateserial")
        self._openssl("x509", "-req", "-in", request, *authority, "-out", certificate, "-days", "2")
        return key, certificate

    @staticmethod
    def _openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], check=True, capture_output=True, timeout=CTL_SECONDS)


def _new_key(path: str) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)


class NorthboundDatabase(Server):
    """It is served from `start` to `stop`, below `directory`, whose path is short; it has rows, and no northd reads them."""

    def __init__(self, directory: Path, authority: Authority, schema: Path = SCHEMAS / "ovn-nb.ovsschema") -> None:
        self._dir = directory
        self._key, self._certificate = authority.sign("server")
        self._authority = authority
        self._schema = schema
        self._create()

    def begin(self) -> None:
        self.start()
        self._initialise()

    @property
    def file(self) -> Path:
        """Where it keeps its transactions."""
        return self._dir / "nb.db"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self._log.unlink(missing_ok=True)
        remotes = (f"--remote=punix:{self._dir}/nb.sock", *(f"--remote=p{kind}:0:{at}" for kind, at in _ADDRESSES.items()))
        keys = (f"--private-key={self._key}", f"--certificate={self._certificate}", f"--ca-cert={self._authority.certificate}")
        files = (f"--unixctl={self._dir}/nb.ctl", f"--log-file={self._log}")
        argv = ["ovsdb-server", "--no-chdir", "-vconsole:off", "-vsyslog:off", *files, *remotes, *keys, f"{self._dir}/nb.db"]
        self._process = subprocess.Popen(argv)
        wait_until(lambda: self.remote("ssl") and self.remote("tcp") and listens(f"{self._dir}/nb.sock"), what="it listens")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def renew(self) -> None:
        """Replace it by an empty one, as after a loss of its file."""
        self.stop()
        Path(f"{self._dir}/nb.db").unlink()
        self._create()
        self.begin()

    def remote(self, kind: Kind) -> str:
        """The address of its socket, "" before it listens."""
        if kind == "unix":
            return f"unix:{self._dir}/nb.sock"
        address = _ADDRESSES[kind]
        told = re.search(rf"\|0:{address}: listening on port (\d+)", self._log.read_text() if self._log.exists() else "")
        return f"{kind}:{address}:{told[1]}" if told else ""

    def nbctl(self, *args: str) -> str:
        return run_program("ovn-nbctl", f"--db={self.remote('unix')}", f"--timeout={CTL_SECONDS}", *args)

    def _initialise(self) -> None:
        self.nbctl("init")

    def _create(self) -> None:
        run_program("ovsdb-tool", "create", f"{self._dir}/nb.db", str(self._schema))

    @property
    def _log(self) -> Path:
        return self._dir / "nb.log"


class SouthboundDatabase(NorthboundDatabase):
    """The same of the southbound database."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        super().__init__(directory, authority, SCHEMAS / "ovn-sb.ovsschema")

    def _initialise(self) -> None:
        run_program("ovn-sbctl", f"--db={self.remote('unix')}", f"--timeout={CTL_SECONDS}", "init")
