"""The network of the node itself, from specs: bridges with uplinks, gateways, address translation."""
