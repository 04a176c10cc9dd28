"""The secrets that this node is known to have: read, to be left out wherever one of them stands, and never kept.

A log line may quote what a pattern does not know. So what is in the kubeconfigs of the settings and of networks, in tokens,
private keys and the environment of agent and command is looked for in every text of the archive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from userspace_cni.base.settings import Settings
from userspace_cni.cli.support.node_files import read_regular
from userspace_cni.cli.support.redaction import Redactor, is_credential

_FILE_MAX: Final = 1 << 20
_TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
_PUBLIC: Final = ("name", "command", "apiVersion", "interactiveMode", "installHint", "provideClusterInfo")
"""Keys of a user of a kubeconfig that are no secrets."""
_DIRECTORIES: Final = ("PWD", "OLDPWD")
"""Variables that are no passwords."""
_KUBECONFIGS_MAX: Final = 64


def learn_secrets(
    redactor: Redactor, settings: Settings, environ: Mapping[str, str], there: Callable[[str], str], networks: Iterable[str]
) -> None:
    """Tell the redactor all of them. `there`: a path of the host as this process reaches it; `networks`: their kubeconfigs."""
    _learn_variables(redactor, environ.items())
    named = [path for path in networks if _is_allowed(path, settings)][:_KUBECONFIGS_MAX]
    for path in filter(None, (settings.kubeconfig, environ.get("KUBECONFIG", ""), *named)):
        _learn_kubeconfig(redactor, path, there)
    _learn_file(redactor, _TOKEN)
    if settings.ovn_private_key:
        _learn_file(redactor, there(settings.ovn_private_key))


def learn_environment(redactor: Redactor, pid: int, there: Callable[[str], str]) -> None:
    """Those in the environment of a process of the node."""
    with suppress(OSError, ValueError):
        raw = read_regular(there(f"/proc/{pid}/environ"), _FILE_MAX).decode("utf-8", "surrogateescape")
        _learn_variables(redactor, (each.partition("=")[::2] for each in raw.split("\0")))


def _learn_variables(redactor: Redactor, variables: Iterable[tuple[str, str]]) -> None:
    for name, value in variables:
        if is_credential(name) and name not in _DIRECTORIES:
            redactor.learn(value)
        else:
            redactor.clean(value)  # it learns what of it looks secret


def _is_allowed(path: str, settings: Settings) -> bool:
    """Whether a network may name this file: it lies where the agent would read it, too."""
    return any(os.path.normpath(path).startswith(f"{each.rstrip('/')}/") for each in settings.kubeconfig_dirs)


def _learn_kubeconfig(redactor: Redactor, path: str, there: Callable[[str], str]) -> None:
    with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
        read = yaml.safe_load(read_regular(os.path.realpath(there(path)), _FILE_MAX))
        users = read.get("users") if isinstance(read, dict) else None
        for each in users if isinstance(users, list) else []:
            user = each.get("user") if isinstance(each, dict) else None
            _learn_user(redactor, user, set())
            for key in ("tokenFile", "client-key"):
                named = user.get(key) if isinstance(user, dict) else None
                if isinstance(named, str):
                    _learn_file(redactor, there(str(Path(path).parent / named)))


def _learn_user(redactor: Redactor, value: Any, seen: set[int]) -> None:
    """Every text of it but those that are public: the arguments and the environment of an exec plugin, too.

    `seen`: what was gone through; YAML may have one list in many places.
    """
    if isinstance(value, dict | list) and id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in _PUBLIC:
                _learn_user(redactor, each, seen)
    elif isinstance(value, list):
        for each in value:
            _learn_user(redactor, each, seen)
    else:
        redactor.learn(value)


def _learn_file(redactor: Redactor, path: str) -> None:
    """A token, or a key with its lines."""
    with suppress(OSError, ValueError):
        text = read_regular(os.path.realpath(path), _FILE_MAX).decode("utf-8", "replace")
        for line in text.splitlines()[:1000]:
            if not line.startswith("-----"):
                redactor.learn(line)
