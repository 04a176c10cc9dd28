"""The node: directories, mounts, files, links, namespaces and delegated plugins."""
