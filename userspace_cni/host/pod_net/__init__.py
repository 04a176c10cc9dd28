"""What pods have in the kernel: veths, routes, limits, and what guards the node's stack from their frames."""
