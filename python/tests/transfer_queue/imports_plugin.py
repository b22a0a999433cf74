"""Imports the plugin as a driver does, and says whether it is installed, or why it refuses.

Usage: imports_plugin.py
"""

import tensorlease as tl

try:
    import tensorlease.transfer_queue
except tl.ConfigError as error:
    print(f"ConfigError: {error}")
else:
    print(f"installed {tensorlease.transfer_queue.installed()}")
