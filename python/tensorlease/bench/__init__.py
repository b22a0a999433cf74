"""The benchmarks behind `tensorlease bench`.

Reading order: sizes, workload, column, modes, reading, reads; then the smaller ones.
"""
