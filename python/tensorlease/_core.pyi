# One stub per Rust file that shows something to Python; this one lists them. What only tests call (`_core._tests`) has none.
from tensorlease._core_buffer import InPlace as InPlace
from tensorlease._core_buffer import Lease as Lease
from tensorlease._core_buffer import live_views as live_views
from tensorlease._core_dtype import dtype_names as dtype_names
from tensorlease._core_host import HostDaemon as HostDaemon
from tensorlease._core_host import host_holder as host_holder
from tensorlease._core_host import host_listens as host_listens
from tensorlease._core_host import host_make_folder as host_make_folder
from tensorlease._core_host import host_report as host_report
from tensorlease._core_host import host_silent_seconds as host_silent_seconds
from tensorlease._core_host import host_socket as host_socket
from tensorlease._core_keys import listed as listed
from tensorlease._core_logging import log_records_dropped as log_records_dropped
from tensorlease._core_logging import set_log_level as set_log_level
from tensorlease._core_options import parse_bytes as parse_bytes
from tensorlease._core_patience import Interrupt as Interrupt
from tensorlease._core_store import CoreStore as CoreStore
from tensorlease._core_tree import count_extensions as count_extensions
from tensorlease._core_tree import levels_max as levels_max

__all__ = [
    "CoreStore",
    "HostDaemon",
    "InPlace",
    "Interrupt",
    "Lease",
    "count_extensions",
    "dtype_names",
    "host_holder",
    "host_listens",
    "host_make_folder",
    "host_report",
    "host_silent_seconds",
    "host_socket",
    "levels_max",
    "listed",
    "live_views",
    "log_records_dropped",
    "parse_bytes",
    "set_log_level",
]
