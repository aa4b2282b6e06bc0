"""Certificates of nodes: the cluster's authority, join tokens, revocations."""
