"""What a kernel of a submission runs on besides the emulator."""
