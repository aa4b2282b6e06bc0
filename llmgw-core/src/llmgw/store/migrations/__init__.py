"""Alembic's folder. Migrations go forward only; a backup is the way back."""
