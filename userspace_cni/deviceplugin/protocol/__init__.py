"""The messages and services of the kubelet's device plugin API, v1beta1: gRPC over unix sockets.

The .proto file is our own and holds only what is spoken here; package, service and method names, field numbers and types are the
kubelet's (k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1). The `*_pb2` module is made of it, never edited, at the top of the
repository:

    .venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. userspace_cni/deviceplugin/protocol/*.proto

A unit test makes it anew and compares.
"""
