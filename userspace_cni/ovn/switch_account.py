"""The account of the API server that ovn-kubernetes' first tools have in external_ids of Open_vSwitch.

`k8s-api-server`, `k8s-ca-certificate` and `k8s-api-token`: all who read the switch's database can read the token. Here it is in
no message, and in no file.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from userspace_cni.base.errors import InvalidConfig, Unavailable

if TYPE_CHECKING:
    from userspace_cni.kube.credentials import ApiSession
    from userspace_cni.kube.kubeconfig import LoadedKubeconfig

SERVER, AUTHORITY, SECRET = KEYS = "k8s-api-server", "k8s-ca-certificate", "k8s-api-token"
_URL: Final = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")
_TOKEN: Final = re.compile(r"[!-~]*")
_LACKING: Final = "there is no account of the API server"
_SAID_BY: Final = f"{', '.join(KEYS)} in external_ids of Open_vSwitch"


@dataclass(frozen=True)
class SwitchAccount:
    """Where it is read, again each time that the server refuses it.

    `read_authority`: the certificate of the authority in the tools' own file, "" without one; it is the one that counts.
    """

    read_ids: Callable[[], Mapping[str, str]]
    read_authority: Callable[[], str]

    def open_session(self) -> ApiSession:
        """Requests under that account. Raises InvalidConfig where the switch names no server, Unavailable."""
        from userspace_cni.kube.credentials import ApiSession
        from userspace_cni.kube.given_account import GivenAccount

        def read() -> LoadedKubeconfig:
            return read_account(self.read_ids(), self.read_authority())

        try:
            ids = self.read_ids()
        except Unavailable as error:
            raise Unavailable(f"{_LACKING}, and the switch that may name one: {error.message}", error.details) from None
        if not ids.get(SERVER):
            raise InvalidConfig(_LACKING, f"the setting kubeconfig; in a pod, its service account; or {_SAID_BY}")
        read()
        return ApiSession(GivenAccount(_SAID_BY, read))


def read_account(ids: Mapping[str, str], authority: str) -> LoadedKubeconfig:
    """The account as a kubeconfig has it. Raises InvalidConfig, which quotes nothing: a server's URL can hold a password."""
    from userspace_cni.kube.kubeconfig import LoadedKubeconfig

    server = ids.get(SERVER, "").strip()
    server = server if "://" in server else f"http://{server}"
    if not _URL.fullmatch(server):
        raise InvalidConfig(
            f"external_ids:{SERVER} of Open_vSwitch is no URL of a server", "it must be as https://192.0.2.1:6443"
        )
    cluster = {"server": server}
    if certificate := authority or ids.get(AUTHORITY, "").replace("\\n", "\n"):
        cluster["certificate-authority-data"] = base64.b64encode(certificate.encode()).decode()
    token = ids.get(SECRET, "").strip()
    if not _TOKEN.fullmatch(token):
        raise InvalidConfig(f"external_ids:{SECRET} of Open_vSwitch is no token", "it has spaces or signs that no token has")
    return LoadedKubeconfig(cluster, {"token": token} if token else {}, "/", {})
