"""What the host's shared arena is worth: `make bench-host`.

Reading order: asked, daemon, store_side, speed, small, rivals, memory, opens, promises, chart.
"""
