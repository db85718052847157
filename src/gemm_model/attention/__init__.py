"""Fused attention: its pipeline, the model of its time, and the choice of its configuration."""
