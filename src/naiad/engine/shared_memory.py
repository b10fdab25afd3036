"""Memory that clients share with the server: named ranges of POSIX shared memory objects.

Sources: Triton's extension_shared_memory.md and shared_memory_manager.cc. Two things differ on
purpose: the offset of a region counts once (Triton 2.51 adds it in the mapping and again at every
use), and a name is free as soon as it is unregistered, while the requests that still use the region
keep it mapped; as long it is shown, and other requests may use it.

A client that shares memory is trusted not to shrink the object between the moment a request is
decoded and its answer: the kernel answers an access beyond the end with a signal that ends the
process, for Triton as for every other program. What the client writes meanwhile is harmless here.
"""

import mmap
import os
import stat
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from naiad.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)

# Where Linux keeps the objects of shm_open(3).
OBJECTS: Final = Path("/dev/shm")  # noqa: S108 - the system's own place, not a temporary file

# What shm_open(3) opens with; a link could lead out of the directory.
_OPEN_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_RESERVED_PREFIX: Final = "triton_python_backend_shm_region_"
_MAX_SIZE: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """A registered region, as its status shows it.

    Attributes:
        name: what requests call it.
        key: of the shared memory object, as it was registered.
        offset: of the region in the object, in bytes; a multiple of the page size.
        byte_size: of the region.
    """

    name: str
    key: str
    offset: int
    byte_size: int


class _Mapping:
    """A region's bytes. They stay mapped while this or any view of them is alive."""

    __slots__ = ("bytes", "object", "region")

    def __init__(self, region: SystemRegion, mapped: mmap.mmap) -> None:
        self.region = region
        self.object = mapped
        self.bytes = memoryview(mapped)


class SharedMemoryRegions:
    """All regions by name; belongs to the event loop.

    Args:
        is_client_use_allowed: the server's ``--allow-client-shm``.
        objects: the directory that holds the shared memory objects.
    """

    def __init__(self, *, is_client_use_allowed: bool, objects: Path = OBJECTS) -> None:
        self._is_allowed = is_client_use_allowed
        self._objects = objects
        self._mappings: dict[str, _Mapping] = {}
        # Those that are unregistered and perhaps still in use, by which alone they stay mapped.
        self._leaving: list[tuple[SystemRegion, weakref.ref[mmap.mmap]]] = []

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map ``byte_size`` bytes from ``offset`` of the object ``key`` under ``name``.

        Raises:
            UnsupportedError: the server does not allow it.
            AlreadyExistsError: the name is taken.
            InvalidArgumentError: the key is reserved or registered already, or the range is not
                inside the object or not on a page.
            InternalError: there is no such object, or the server may not read and write it.
        """
        self._check_is_allowed()
        _check_key(name, key)
        self._check_is_free(name)
        # Triton means to allow a second region of an object and fails on a descriptor that it has
        # closed; its answer is kept, since clients and recorded sessions count on it.
        if any(mapping.region.key == key for mapping in self._mappings.values()):
            raise _refused(name, "invalid args")
        descriptor = self._open(key)
        try:
            mapped = _map(name, descriptor, offset, byte_size)
        finally:
            os.close(descriptor)
        self._mappings[name] = _Mapping(SystemRegion(name, key, offset, byte_size), mapped)

    def unregister_system(self, name: str = "") -> None:
        """Forget one region, or all when no name is given; a name that is not there is no error.

        Requests that use the region keep it mapped, and in the status, until they are answered.

        Raises:
            UnsupportedError: the server does not allow it.
        """
        self._check_is_allowed()
        # A region may be called '', and goes with all.
        for known in (name,) if name else tuple(self._mappings):
            mapping = self._mappings.pop(known, None)
            if mapping is None:
                continue
            self._leaving.append((mapping.region, weakref.ref(mapping.object)))
        self._leaving = [leaving for leaving in self._leaving if leaving[1]() is not None]

    def system_status(self, name: str = "") -> list[SystemRegion]:
        """One region, or all sorted by name when no name is given.

        Raises:
            NotFoundError: no region has that name.
        """
        regions = {region.name: region for region, mapped in self._leaving if mapped() is not None}
        regions.update((known, mapping.region) for known, mapping in self._mappings.items())
        if not name:
            return [regions[known] for known in sorted(regions)]
        if name not in regions:
            raise NotFoundError(f"Unable to find system shared memory region: '{name}'")
        return [regions[name]]

    def register_cuda(self, name: str) -> None:
        """Refuse a region of GPU memory, in the words of Triton on a machine without a GPU.

        Raises:
            UnsupportedError: the server allows no shared memory at all.
            AlreadyExistsError: the name is taken.
            InvalidArgumentError: always otherwise.
        """
        self._check_is_allowed()
        self._check_is_free(name)
        raise InvalidArgumentError("failed to register shared memory region: invalid args")

    def unregister_cuda(self, name: str = "") -> None:
        """Forget regions of GPU memory, of which there are none; unknown names are no error.

        Raises:
            UnsupportedError: the server allows no shared memory at all.
        """
        self._check_is_allowed()

    def cuda_status(self, name: str = "") -> list[SystemRegion]:
        """The regions of GPU memory: none.

        Raises:
            NotFoundError: a name was given, and it is not one of them.
        """
        if not name:
            return []
        if name in self._mappings:
            raise NotFoundError(
                f"The region named '{name}' is registered as system shared memory, not CUDA "
                "shared memory"
            )
        raise NotFoundError(f"Unable to find cuda shared memory region: '{name}'")

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        """A range of a region, without copying.

        Args:
            name: of the region.
            offset: in the region, not in the object; not negative.
            byte_size: of the range; not negative.

        Returns:
            A writable view that keeps the memory mapped. The client may change the bytes at any
            time: read what must not change once, and give a model a read-only view.

        Raises:
            UnsupportedError: the server allows no shared memory.
            NotFoundError: no such region.
            InvalidArgumentError: the range is not inside the region, or no longer inside the
                object.
        """
        mapping = self._mappings.get(name) or self._find_leaving(name)
        if mapping is None:
            self._check_is_allowed()
            raise NotFoundError(f"Unable to find shared memory region: '{name}'")
        region = mapping.region
        if offset < 0 or offset >= region.byte_size:
            raise InvalidArgumentError(f"Invalid offset for shared memory region: '{name}'")
        end = offset + byte_size
        if end > _MAX_SIZE:
            raise InvalidArgumentError(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds "
                f"maximum value ({_MAX_SIZE}) for region '{name}'"
            )
        if byte_size < 0 or end > region.byte_size:
            raise InvalidArgumentError(
                f"Invalid offset + byte size for shared memory region: '{name}'"
            )
        # One system call, so that an object which its owner made smaller is an error, not a signal.
        if region.offset + end > mapping.object.size():
            raise InvalidArgumentError(
                f"Invalid offset + byte size for shared memory region: '{name}'. Its object "
                f"'{region.key}' has been made smaller since it was registered"
            )
        return mapping.bytes[offset:end]

    def _find_leaving(self, name: str) -> _Mapping | None:
        """A region that is unregistered and in use, which other requests may use meanwhile."""
        for region, reference in reversed(self._leaving):
            mapped = reference()
            if region.name == name and mapped is not None:
                return _Mapping(region, mapped)
        return None

    def _check_is_allowed(self) -> None:
        if not self._is_allowed:
            raise UnsupportedError(
                "Client shared memory is disabled. Start the server with "
                "'--allow-client-shm=true' to enable."
            )

    def _check_is_free(self, name: str) -> None:
        if name in self._mappings:
            raise AlreadyExistsError(f"shared memory region '{name}' already in manager")

    def _open(self, key: str) -> int:
        """A descriptor of the object; the caller closes it."""
        file_name = key.removeprefix("/")
        is_name = file_name not in ("", ".", "..") and not set("/\0") & set(file_name)
        try:
            if not is_name:
                raise FileNotFoundError(file_name)
            return os.open(self._objects / file_name, _OPEN_FLAGS)
        except OSError as error:
            raise InternalError(f"Unable to open shared memory region: '{key}'") from error


def _check_key(name: str, key: str) -> None:
    bare = key.lstrip("/")
    if not bare:
        raise InvalidArgumentError(
            f"cannot register shared memory region '{name}' - invalid shm key '{key}'"
        )
    if bare.startswith(_RESERVED_PREFIX):
        raise InvalidArgumentError(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains "
            f"the reserved prefix '{_RESERVED_PREFIX}'"
        )


def _map(name: str, descriptor: int, offset: int, byte_size: int) -> mmap.mmap:
    """Map a range that is inside the object."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or offset < 0 or byte_size < 0:
        raise _refused(name, "invalid args")
    if offset + byte_size > status.st_size:
        raise _refused(name, "invalid args")
    if byte_size == 0 or offset % mmap.ALLOCATIONGRANULARITY:
        # What mmap(2) says of both; Python would take a size of 0 for the whole object.
        raise _refused(name, "unable to process address spaceInvalid argument")
    try:
        return mmap.mmap(descriptor, byte_size, offset=offset)
    except OSError as error:
        raise _refused(name, f"unable to process address space{error.strerror}") from error


def _refused(name: str, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"failed to register shared memory region '{name}': {reason}")
