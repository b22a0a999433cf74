"""The benchmarks behind `tensorlease bench`.

Reading order: sizes, workload, column, opening, modes, reading, alternation, reads; then the smaller ones. `command` has the options of each.
"""
