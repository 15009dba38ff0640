"""The mutation benchmark: seeded mistakes in kernels that are right, and what the emulator says about them.

* :mod:`mutation.subjects`: the kernels, their inputs and how their results are compared.
* :mod:`mutation.source`: the statements of a kernel's source, what sort each is, and how it is edited.
* :mod:`mutation.operators`: the mistakes.
* :mod:`mutation.runner`: builds and runs a mutant in a process of its own, and judges what came out.
* :mod:`mutation.equivalent`: mutants that are no mistakes, with the reason.

``benchmarks/mutation_benchmark.py`` runs all of it, ``test_mutation.py`` a part.
"""
