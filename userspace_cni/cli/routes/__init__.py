"""Commands about routes in pods, and about pods' network namespaces."""
