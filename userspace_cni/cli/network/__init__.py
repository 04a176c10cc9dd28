"""Commands about the network of the node itself: what is wished of it, and what it has."""
