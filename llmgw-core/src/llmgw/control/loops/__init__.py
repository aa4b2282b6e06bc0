"""Shells that carry reports in, plans out, endpoints on, and ask who leads."""
