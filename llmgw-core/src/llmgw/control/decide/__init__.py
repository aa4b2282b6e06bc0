"""Pure decisions: frozen values in, a frozen answer with its reasons out. `now` is an argument."""
