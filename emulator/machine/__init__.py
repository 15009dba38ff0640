"""What the hardware has: swizzles, descriptors, tensor maps and tensor-memory layouts, as pure functions."""
