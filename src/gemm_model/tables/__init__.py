"""Tables of kernels, and errors of predictions against measurements."""
