"""The data plane: between a client's socket and an engine's there is nothing but this room."""
