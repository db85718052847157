"""The vocabulary: types, problem, kernel configuration, GPU, batches, predictions."""
