"""What is decided for the whole cluster: sums of what nodes report, ranges of nodes, garbage. It touches no node."""
