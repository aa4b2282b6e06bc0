"""See README.md of this distribution."""
