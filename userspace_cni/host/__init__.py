"""The node: directories, mounts, files, namespaces, delegated plugins and the API server. Imported by `drivers` alone."""
