"""`autograde check-course`: proof that a course can be released.

`files` looks at what stands in files, in a moment. `kernels` grades: every stub, solution and mutant; `release` asks nbgrader.
These jobs run in a pool of processes (`run`), and their results are kept by the content that they depend on.
"""
