"""What happens when: event simulation of the producer/consumer pipeline, traces and plots of it."""
