"""Fused attention: model of its pipeline, model of its runtime, and choice of its configuration."""
