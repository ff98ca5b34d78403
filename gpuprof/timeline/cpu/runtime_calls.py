"""Calls of the runtime and the driver, by name: those that wait, and those that allocate or free memory."""

from __future__ import annotations

import re

SYNC_CALL = re.compile(r"^(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread)Synchronize")
ALLOCATOR_CALL = re.compile(
    r"^(cuda|hip|cu)(Ext)?(Malloc|Free|HostAlloc|HostFree|HostRegister|HostUnregister|Mem(Alloc|Free|Create|Release|Map"
    r"|Unmap|SetAccess|AddressReserve|AddressFree))"
)
