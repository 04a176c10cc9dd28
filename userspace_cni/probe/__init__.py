"""Frames for people: what proves a bridge, measures round trips and rates between two endpoints, and on which cores."""
