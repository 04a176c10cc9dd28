"""Gateways of the logical network: what pods reach outside it by, and what reaches them from there."""
