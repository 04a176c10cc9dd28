"""Checks manifests and domains before they are applied. Pure."""
