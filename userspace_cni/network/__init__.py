"""The network of the node itself, from wishes: bridges with uplinks, gateways, address translation."""
