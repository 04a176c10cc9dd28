"""Commands about VMs of KubeVirt."""
