"""CNI plugin for vhost-user interfaces on OVS-DPDK."""
