"""``tensorlease doctor``: what would keep a store from working here, and the line that mends it.

It starts, stops and changes nothing: it reads, asks the master, and tries small stores in processes of its own, each with a limit.
``examination`` begins; ``looks`` is what those processes load, so nothing is imported here.
"""
