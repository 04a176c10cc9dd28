"""The kubelet's directory for device plugins: its socket, at which plugins register, and the lock by which one agent uses it.

A kubelet that starts empties the directory and makes its socket anew. It keeps the directory itself, so the lock is on that: two
agents that offer the same resource would take it from each other for ever. The lock ends with its process.
"""
# Descriptors and paths of another root rather than pathlib's.
# ruff: noqa: PTH116

from __future__ import annotations

import fcntl
import os
from typing import Final
from urllib.parse import quote

import grpc

from userspace_cni.base.errors import Unavailable
from userspace_cni.deviceplugin.protocol import v1beta1_pb2 as v1beta1

REGISTER_S: Final = 5.0
"""A kubelet connects to the plugin's socket before it answers."""
_VERSION: Final = "v1beta1"
_SOCKET: Final = "kubelet.sock"

Identity = tuple[int, int, int]


class Kubelet:
    """`directory`: `device-plugins` in the kubelet's root directory, as this process sees it. `identify` is for any thread."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._locked: int | None = None

    def identify(self) -> Identity | None:
        """Names the kubelet's socket: another one has another name. None while there is none. Waits for nothing."""
        try:
            facts = os.stat(f"{self.directory}/{_SOCKET}")
        except OSError:
            return None
        return facts.st_dev, facts.st_ino, facts.st_ctime_ns

    def hold(self) -> bool:
        """Take the lock of the directory, unless it is held; whether it is. Raises Unavailable."""
        try:
            if self._locked is not None and os.path.samestat(os.fstat(self._locked), os.stat(self.directory)):
                return True
            self.let_go()
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the kubelet's directory {self.directory}: {error.strerror}", "setting kubelet_dir") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._locked = fd
        return True

    def let_go(self) -> None:
        """Let another agent use the directory."""
        fd, self._locked = self._locked, None
        if fd is not None:
            os.close(fd)

    def register(self, resource: str, socket: str) -> None:
        """Tell the kubelet of the socket in its directory at which the resource is offered. Raises Unavailable."""
        path = f"{self.directory}/{_SOCKET}"
        with grpc.insecure_channel(f"unix:{quote(path)}", options=(("grpc.enable_http_proxy", 0),)) as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=v1beta1.RegisterRequest.SerializeToString,
                response_deserializer=v1beta1.Empty.FromString,
            )
            request = v1beta1.RegisterRequest(version=_VERSION, endpoint=socket, resource_name=resource)
            try:
                call(request, timeout=REGISTER_S)
            except grpc.RpcError as error:
                raise Unavailable(
                    f"registering {resource} at {path}: {error.code().name}: {error.details()}", "the kubelet's log"
                ) from None
