"""Tables of kernels, and how far predictions are from their measurements."""
