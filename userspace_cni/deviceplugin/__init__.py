"""Offers devices of each bridge to the kubelet, so that pods are scheduled where their bridge is."""
