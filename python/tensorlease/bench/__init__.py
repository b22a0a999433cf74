"""What `tensorlease bench reads` measures with. The repository's other benchmarks, in `bench/`, use it too.

Reading order: workload, column, opening, reading, reads; then the smaller ones. `command` has the options.
"""
