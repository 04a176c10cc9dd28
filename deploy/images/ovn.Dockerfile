# OVN for deploy/cluster/overlays/ovn: databases, ovn-northd and ovn-controller, as Debian has them. At the top of the repository:
#
#     podman build -f deploy/images/ovn.Dockerfile -t userspace-cni-ovn:0.1.0 .
#
# Nothing of this project is in it: an image of another OVN with bash and the same programs can take its place.
ARG BASE=docker.io/library/debian:12-slim
FROM ${BASE}
LABEL org.opencontainers.image.title="userspace-cni-ovn" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# policy-rc.d: the packages' services are not started where the image is built
RUN printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d \
    && apt-get update \
    && apt-get install -y --no-install-recommends ovn-central ovn-host \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/log/* /etc/openvswitch/* /var/lib/ovn/*
ENV OVN_RUNDIR=/run/ovn OVS_RUNDIR=/run/openvswitch
