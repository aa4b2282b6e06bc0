"""The operator's hands: a client of the admin API, and nothing else of the server."""
