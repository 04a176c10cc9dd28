"""Commands about OVN: a cluster's logical network, a node's part in it, and what of both is not as it should be."""
