"""Network cards with verbs, as the kernel and as libibverbs see them."""

from tensorlease.doctor.finding import Finding, fine, needed_or_not, not_seen, problem
from tensorlease.doctor.machine import Machine, Port
from tensorlease.doctor.target import Target
from tensorlease.doctor.trials import Outcome
from tensorlease.sizes import format_bytes

_SUBJECT = "ibverbs"
_NO_LIMIT = 1 << 60
_NO_DEVICE = (
    "install the card's driver; for tests: sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth0"
)
_PROVIDERS = "sudo apt install libibverbs1 ibverbs-providers"
_NOT_ALLOWED = "sudo chmod 666 /dev/infiniband/uverbs*  # a container: --device=/dev/infiniband"


def ibverbs(target: Target, machine: Machine, verbs: Outcome) -> list[Finding]:
    """One finding per device, or one that says what is missing. `verbs` is of the look of that name."""
    ports = machine.rdma_ports()
    if not ports:
        message = "This machine has no RDMA device; only mooncake://...?protocol=rdma needs one."
        return [needed_or_not(target.is_rdma, _SUBJECT, message, _NO_DEVICE)]
    if verbs.end == "hung":
        return [not_seen(_SUBJECT, target.is_rdma, target.url, verbs)]
    if verbs.end != "done" or verbs.values["error"]:
        why = verbs.why if verbs.end != "done" else verbs.values["error"]
        message = f"The kernel has RDMA devices, and libibverbs does not work: {why}."
        return [needed_or_not(target.is_rdma, _SUBJECT, message, _PROVIDERS)]
    asked = [name for name in target.options.get("device", "").split(",") if name]
    devices = sorted({port.device for port in ports})
    absent = [name for name in asked if name not in devices]
    if target.is_rdma and absent:
        message = f"The URL asks for the device {', '.join(absent)}, and there is {', '.join(devices)}."
        return [problem(_SUBJECT, message, f"write device={devices[0]} in the URL")]
    # Without a name Mooncake chooses, so that one port that works is enough.
    any_works = any(port.state == "ACTIVE" for port in ports)
    found = []
    for port in ports:
        is_meant = port.device in asked if asked else not any_works or port.state == "ACTIVE"
        found.append(_port(port, machine, verbs.values["devices"].get(port.device), target.is_rdma and is_meant))
    return found


def _port(port: Port, machine: Machine, limits: dict[str, object] | None, needed: bool) -> Finding:
    name = f"{port.device} port {port.number}"
    if closed := machine.closed_verbs_files():
        message = f"{name} can't be used by this process: {closed[0]} may not be opened."
        return needed_or_not(needed, _SUBJECT, message, _NOT_ALLOWED)
    if limits is None:
        message = f"{port.device} is unknown to libibverbs: its driver for user space is missing."
        return needed_or_not(needed, _SUBJECT, message, _PROVIDERS)
    if "error" in limits:
        return needed_or_not(needed, _SUBJECT, f"{port.device} does not open: {limits['error']}.", _NOT_ALLOWED)
    if port.state != "ACTIVE":
        up = f"sudo ip link set {machine.netdev_of(port.device)} up"
        fix = up if port.link_layer == "Ethernet" else "connect the cable, and see that a subnet manager runs (opensm)"
        return needed_or_not(needed, _SUBJECT, f"{name} is {port.state}, not ACTIVE.", fix)
    largest, most = int(str(limits["max_mr_bytes"])), limits["max_mr"]
    # Software devices say the largest number there is.
    size = "any size" if largest >= _NO_LIMIT else f"up to {format_bytes(largest)}"
    message = f"{name} is ACTIVE ({port.link_layer}, {port.rate}): {most} registrations of {size}."
    return fine(_SUBJECT, message)
