"""Kernels that the tests run."""
