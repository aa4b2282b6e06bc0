"""The command line. A command's module is imported when it is chosen, and not before."""
