"""KubeVirt: VM interfaces on vhost-user, by a network binding sidecar."""
