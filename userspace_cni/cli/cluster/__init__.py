"""Commands about objects of a cluster, read from files."""
