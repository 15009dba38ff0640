"""Arithmetic of the GPU: number formats, conversions, roundings, special functions and the tensor core."""
