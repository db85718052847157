"""Timelines: event simulation of the producer/consumer pipeline, traces and plots."""

WAIT_DATA, WAIT_STAGE = "wait_data", "wait_stage"
"""Ranges that this package adds to a library's own: one for each k tile."""
