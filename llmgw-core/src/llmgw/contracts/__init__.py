"""The seams that plugins fill: Protocols of a few methods, and the values they exchange.

A plugin's objects describe and decide; they do no I/O except where a docstring says so. An
optional ability is a Protocol of its own: absent, not a method that does nothing.
"""
