"""Publishing the fleet elsewhere: for Prometheus and for Envoy, each a plugin like any other."""
