"""Grade a class: find what was handed in, grade it in parallel, keep one record per result, write the tables.

The records in the results folder are the only state. Whatever grades, a pool of processes here or jobs on a cluster,
writes them in one step each; so a run that was stopped goes on where it ended, and a second run has nothing to do.
"""
