"""An account at an API server: where the server is, what a request says of who sends it, and the pool of connections to it.

What a kubeconfig or a service account holds in so many words is read here, and urllib3 makes the connections. The `kubernetes`
library is for what takes more, and is imported for that alone (17 MiB, 150 ms of processor time): a kubeconfig's `exec` and
`auth-provider`, for which a program is run or another server is asked, and a connection through a proxy, where NO_PROXY counts.
TLS verification is as the kubeconfig says (on unless it has insecure-skip-tls-verify) and is never weakened here.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from userspace_cni.base.errors import Unavailable
from userspace_cni.kube.kubeconfig import LoadedKubeconfig, Signature

if TYPE_CHECKING:
    from ssl import SSLContext

_KEPT: Final = 10
"""Connections that stay open between requests, watches not counted."""


@dataclass(frozen=True)
class Account:
    """`server`: its URL, without a slash at the end. `authorization`: the header's value, "" for none. `pool`: urllib3's.

    `files`: of the files from which it was read.
    """

    server: str
    authorization: str
    pool: Any
    files: Mapping[str, Signature]


def of_service_account(directory: str) -> Account:
    """The account of the pod that this process runs in. Raises KeyError, OSError or ValueError where it has none."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    trusted = Path(directory, "ca.crt")
    token, authority = Path(directory, "token").read_text(), trusted.read_bytes()
    if not (host and port and token and authority):
        raise ValueError("a part of the service account is empty")
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    if _proxies(cluster):  # for which the library is used: it would copy the data to a file, and the root may be read-only
        cluster = {"server": server, "certificate-authority": str(trusted)}
    return of_kubeconfig(LoadedKubeconfig(cluster, {"token": token}, directory, {}))


def of_kubeconfig(loaded: LoadedKubeconfig) -> Account:
    """The account of a kubeconfig. Raises what parsers, programs and TLS raise for values that are none; a text may be quoted."""
    from urllib3.util import make_headers

    cluster, user = loaded.cluster, loaded.user
    if "auth-provider" in user or ("exec" in user and not user.get("token")) or _proxies(cluster):
        return _by_library(loaded)
    authorization = ""
    if user.get("token"):
        authorization = f"Bearer {str(user['token']).strip()}"  # a token file may end in a newline
    elif "username" in user and "password" in user:
        authorization = make_headers(basic_auth=f"{user['username']}:{user['password']}")["authorization"]
    return Account(cluster["server"].rstrip("/"), authorization, _pool(cluster, user), loaded.files)


def _pool(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Any:
    from urllib3 import PoolManager

    secured: dict[str, Any] = {}
    if cluster["server"].startswith("https"):
        name = cluster.get("tls-server-name")
        secured = {"ssl_context": _tls(cluster, user)} | ({"server_hostname": name} if name else {})
    return PoolManager(maxsize=_KEPT, socket_options=_socket_options(), **secured)


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> SSLContext:
    """TLS with that server's authority and that user's certificate.

    Raises Unavailable for those that do not go together: what exchanges their files does not exchange all at once.
    """
    import ssl

    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context(cert_reqs=ssl.CERT_NONE if cluster.get("insecure-skip-tls-verify") else ssl.CERT_REQUIRED)
    try:
        if authority := cluster.get("certificate-authority-data"):
            with _as_file(authority) as path:
                context.load_verify_locations(path)
        else:
            context.load_default_certs()
        if certificate := user.get("client-certificate-data"):
            with _as_file(certificate) as public, _as_file(user.get("client-key-data") or certificate) as private:
                context.load_cert_chain(public, private, password=bytes)  # of an encrypted key OpenSSL would ask a terminal
    except ssl.SSLError as error:
        raise Unavailable(
            f"TLS with the API server cannot be set up: {error.reason or type(error).__name__}",
            "certificate-authority, client-certificate and client-key of its kubeconfig: openssl x509 -in FILE",
        ) from None
    return context


@contextmanager
def _as_file(data: str) -> Iterator[str]:
    """The path of a file in memory with what `data` is the base64 of: OpenSSL reads keys of files alone."""
    fd = os.memfd_create("kubeconfig", os.MFD_CLOEXEC)
    try:
        os.write(fd, base64.b64decode(data))
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _proxies(cluster: Mapping[str, Any]) -> bool:
    """Whether a proxy may be asked for: by the kubeconfig, or by the environment, as HTTPS_PROXY."""
    named = (name for name, value in os.environ.items() if value and name.lower().endswith("_proxy"))
    return bool(cluster.get("proxy-url")) or any(name.lower() != "no_proxy" for name in named)


def _by_library(loaded: LoadedKubeconfig) -> Account:
    """The account as the library reads it of the kubeconfig, with the program's or the other server's answer."""
    from kubernetes.client import Configuration
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.config.kube_config import KubeConfigLoader

    configure: Any = KubeConfigLoader  # carries no types
    configuration = Configuration()
    with _quiet_library():
        configure(loaded.config, config_base_path=loaded.directory).load_and_set(configuration)
    configuration.refresh_api_key_hook = None
    configuration.socket_options = _socket_options()
    settings: Any = configuration.auth_settings()
    given = (each["value"].strip() for each in settings.values() if each["in"] == "header" and each["value"])
    return Account(configuration.host, next(given, ""), RESTClientObject(configuration).pool_manager, loaded.files)


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Keep the root logger silent: the library logs an exec plugin's stderr there, and goes on without a token."""
    import logging
    import threading

    root, handler, thread = logging.getLogger(), logging.NullHandler(), threading.get_ident()

    def refuse(_record: object) -> bool:
        return threading.get_ident() != thread

    root.addHandler(handler)
    root.addFilter(refuse)
    try:
        yield
    finally:
        root.removeFilter(refuse)
        root.removeHandler(handler)


def _socket_options() -> list[tuple[int, int, int]]:
    """Socket options by which the kernel notices within 30 s that a server vanished: else a waiting connection seems alive.

    SO_KEEPALIVE is for an idle connection, TCP_USER_TIMEOUT for one with unacknowledged data.
    """
    import socket

    level = socket.IPPROTO_TCP
    probes = [(level, socket.TCP_KEEPIDLE, 15), (level, socket.TCP_KEEPINTVL, 5), (level, socket.TCP_KEEPCNT, 3)]
    sent = [(level, socket.TCP_NODELAY, 1), (level, socket.TCP_USER_TIMEOUT, 30_000)]
    return [*sent, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *probes]
