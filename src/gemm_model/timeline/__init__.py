"""Timelines: event simulation of the producer/consumer pipeline, traces and plots."""
