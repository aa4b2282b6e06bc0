"""What the control plane remembers between two looks: stores that hold and never wait."""
