"""One process that serves: listeners bound, parts composed, started and stopped in order.

`app.py` is the only place that knows both the router and the control plane.
"""
