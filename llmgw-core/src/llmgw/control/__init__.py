"""The control plane: inventory, catalog, placement and reconciliation, wired and published.

Decisions are pure (`decide`), stores hold state and never wait (`state`), loops carry things
between them (`loops`). It knows neither routers nor transports: see `llmgw.contracts`.
"""
