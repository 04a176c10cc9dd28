"""Options that were read lately, for a process that lives on: the pods of one network are called with the same configuration."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from userspace_cni.cni.options import ConsumerRules, Options, Warn, read_options
from userspace_cni.cni.request import Request

_MOST: Final = 64
_LONGEST: Final = 1 << 14
"""Configurations that are kept, and their bytes: 1 MiB at most, whatever tenants write."""
_OF_POD: Final = frozenset(
    {"IgnoreUnknown", "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_SANDBOX_ID"}
)
"""Keys of CNI_ARGS that no option depends on, and that differ between pods."""

_Key = tuple[bytes, frozenset[tuple[str, str]]]


class KnownOptions:
    """What `read_options` returned for a configuration and CNI_ARGS, if it had nothing to warn of. Safe between threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, Options] = OrderedDict()
        """Each method of it that is used is one step of the interpreter, so that no lock is needed."""

    def read(self, request: Request, consumers: Mapping[str, ConsumerRules], warn: Warn) -> Options:
        """As `read_options`; `consumers` must be the same in each call."""
        args = frozenset(each for each in request.environment.args.items() if each[0] not in _OF_POD)
        key = request.stdin, args
        known = self._known.get(key)
        if known is not None:
            return known
        told: list[str] = []
        try:
            options = read_options(request, consumers, told.append)
        finally:
            for text in told:
                warn(text)
        length = len(request.stdin) + sum(len(name) + len(value) for name, value in args)
        # a Subnet's addresses are no part of the bytes
        if not told and not request.network.subnet and length <= _LONGEST:
            self._known[key] = options
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        return options
