"""The words of the house as values: frozen, no I/O, no clock, importing only each other."""
