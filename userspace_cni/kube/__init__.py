"""Access to the API server: credentials, the client, the watch of this node's pods."""
