"""What travels between an agent and a server: the frames, their translation, the calls."""
