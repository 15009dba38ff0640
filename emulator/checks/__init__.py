"""Checks of what a kernel does."""
