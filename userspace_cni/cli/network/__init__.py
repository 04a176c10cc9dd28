"""Commands about the network of the node itself: what is asked of it, and what it has."""
