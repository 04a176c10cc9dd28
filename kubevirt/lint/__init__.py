"""Manifests and domains judged before anybody applies them. Pure."""
