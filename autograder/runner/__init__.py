"""Processes that do the work of a grade, so that no verdict is computed where a submission ran.

    builder   runs the submission, returns its PrimFunc as inert JSON       (build_child.py)   not trusted
    machine   lowers that PrimFunc and runs it on the emulator              (machine_child.py)
    oracle    makes the inputs, computes the reference, compares            (oracle_child.py)

All three start at once; the command line only passes bytes between them.
"""
