"""What the node itself has in the kernel: NICs, addresses, gateways, routing, and links for the switch."""
