"""The messages and services by which virt-launcher and a sidecar talk: gRPC over a unix socket, in KubeVirt's packages.

The .proto files are our own and hold only what is spoken here; package, service and method names, field numbers and types are
KubeVirt's (pkg/hooks/info, pkg/hooks/v1alpha1 to 3, pkg/hooks/plugins/v1alpha1). The `*_pb2` modules are made of them, never
edited, at the top of the repository:

    .venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. kubevirt/protocol/*.proto

A unit test makes them anew and compares. There are no `*_pb2_grpc` modules: they would tie grpcio to the version that made them,
and `kubevirt.sidecar_server` binds functions to a service by its descriptor in a few lines.
"""
