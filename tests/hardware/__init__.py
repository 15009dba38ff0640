"""The emulator against an H200: every case runs as a compiled module on the GPU and in the emulator."""
