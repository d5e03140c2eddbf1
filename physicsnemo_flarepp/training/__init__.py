"""Training: losses."""
