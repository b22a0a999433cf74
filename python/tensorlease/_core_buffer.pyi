from typing import final

@final
class Lease:
    """Owns a block of the arena, or a copy, until the last view of it is gone."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class InPlace:
    """Keeps an object of the host's store as it is, until the last array over it is gone."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def live_views() -> int:
    """How many objects of a host's store this process reads in place now."""
