"""Regions of shared memory, over plain files in place of shared memory objects."""

import mmap
from pathlib import Path

import pytest

from naiad.engine.shared_memory import SharedMemoryRegions, SystemRegion
from naiad.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NaiadError,
    NotFoundError,
    UnsupportedError,
)

PAGE = mmap.ALLOCATIONGRANULARITY


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    (folder / "two_pages").write_bytes(bytes(range(256)) * (2 * PAGE // 256))
    (folder / "other").write_bytes(bytes(64))
    (tmp_path / "outside").write_bytes(bytes(64))
    return folder


@pytest.fixture
def regions(objects: Path) -> SharedMemoryRegions:
    return SharedMemoryRegions(is_client_use_allowed=True, objects=objects)


def test_a_view_is_the_memory_itself(regions: SharedMemoryRegions, objects: Path) -> None:
    regions.register_system("a", "/two_pages", 0, 64)
    view = regions.view("a", 4, 8)
    assert bytes(view) == bytes(range(4, 12))
    with (objects / "two_pages").open("r+b") as file:
        file.seek(4)
        file.write(b"new")
    assert bytes(view[:3]) == b"new"
    view[3:5] = b"!!"
    assert (objects / "two_pages").read_bytes()[4:9] == b"new!!"


def test_the_offset_of_a_region_counts_once(regions: SharedMemoryRegions, objects: Path) -> None:
    regions.register_system("far", "two_pages", PAGE, 64)
    regions.view("far", 1, 2)[:] = b"xy"
    content = (objects / "two_pages").read_bytes()
    assert content[PAGE : PAGE + 4] == b"\x00xy\x03"
    assert content[:4] == b"\x00\x01\x02\x03"


def test_status_shows_what_was_registered(regions: SharedMemoryRegions) -> None:
    regions.register_system("b", "/two_pages", PAGE, 64)
    regions.register_system("a", "other", 0, 16)
    b = SystemRegion("b", "/two_pages", PAGE, 64)
    assert regions.system_status() == [SystemRegion("a", "other", 0, 16), b]
    assert regions.system_status("b") == [b]
    assert regions.cuda_status() == []


@pytest.mark.parametrize(
    ("key", "offset", "byte_size", "error", "text"),
    [
        ("/none", 0, 8, InternalError, "Unable to open shared memory region: '/none'"),
        (
            "",
            0,
            8,
            InvalidArgumentError,
            "cannot register shared memory region 'n' - invalid shm key ''",
        ),
        ("..", 0, 8, InternalError, "Unable to open shared memory region: '..'"),
        ("nul\0", 0, 8, InternalError, "Unable to open shared memory region: 'nul\0'"),
        ("x" * 300, 0, 8, InternalError, f"Unable to open shared memory region: '{'x' * 300}'"),
        (
            "/../outside",
            0,
            8,
            InternalError,
            "Unable to open shared memory region: '/../outside'",
        ),
        (
            "//two_pages",
            0,
            8,
            InternalError,
            "Unable to open shared memory region: '//two_pages'",
        ),
        (
            "/two_pages",
            0,
            2 * PAGE + 1,
            InvalidArgumentError,
            "failed to register shared memory region 'n': invalid args",
        ),
        (
            "/two_pages",
            2 * PAGE - 8,
            64,
            InvalidArgumentError,
            "failed to register shared memory region 'n': invalid args",
        ),
        (
            "/two_pages",
            1 << 63,
            1 << 63,
            InvalidArgumentError,
            "failed to register shared memory region 'n': invalid args",
        ),
        (
            "/two_pages",
            -PAGE,
            8,
            InvalidArgumentError,
            "failed to register shared memory region 'n': invalid args",
        ),
        (
            "/two_pages",
            64,
            64,
            InvalidArgumentError,
            "failed to register shared memory region 'n': unable to process address "
            "spaceInvalid argument",
        ),
        (
            "/two_pages",
            0,
            0,
            InvalidArgumentError,
            "failed to register shared memory region 'n': unable to process address "
            "spaceInvalid argument",
        ),
        (
            "/triton_python_backend_shm_region_1",
            0,
            8,
            InvalidArgumentError,
            "cannot register shared memory region 'n' with key "
            "'/triton_python_backend_shm_region_1' as the key contains the reserved prefix "
            "'triton_python_backend_shm_region_'",
        ),
        (
            "///triton_python_backend_shm_region_1",
            0,
            8,
            InvalidArgumentError,
            "cannot register shared memory region 'n' with key "
            "'///triton_python_backend_shm_region_1' as the key contains the reserved prefix "
            "'triton_python_backend_shm_region_'",
        ),
        (
            "//",
            0,
            8,
            InvalidArgumentError,
            "cannot register shared memory region 'n' - invalid shm key '//'",
        ),
    ],
)
def test_what_can_not_be_registered(
    regions: SharedMemoryRegions,
    key: str,
    offset: int,
    byte_size: int,
    error: type[NaiadError],
    text: str,
) -> None:
    with pytest.raises(error) as caught:
        regions.register_system("n", key, offset, byte_size)
    assert caught.value.message == text
    assert regions.system_status() == []


def test_links_are_not_followed(regions: SharedMemoryRegions, objects: Path) -> None:
    (objects / "link").symlink_to(objects.parent / "outside")
    with pytest.raises(InternalError, match="Unable to open"):
        regions.register_system("n", "link", 0, 8)


def test_folders_are_no_objects(regions: SharedMemoryRegions, objects: Path) -> None:
    (objects / "folder").mkdir()
    with pytest.raises(InternalError, match="Unable to open"):
        regions.register_system("n", "folder", 0, 8)


def test_names_and_keys_are_taken_once(regions: SharedMemoryRegions) -> None:
    regions.register_system("a", "/two_pages", 0, 64)
    with pytest.raises(AlreadyExistsError, match="shared memory region 'a' already in manager"):
        regions.register_system("a", "/other", 0, 64)
    with pytest.raises(InvalidArgumentError, match="region 'b': invalid args"):
        regions.register_system("b", "/two_pages", 0, 64)


@pytest.mark.parametrize(
    ("offset", "byte_size", "text"),
    [
        (64, 0, "Invalid offset for shared memory region: 'a'"),
        (1 << 62, 1, "Invalid offset for shared memory region: 'a'"),
        (-1, 1, "Invalid offset for shared memory region: 'a'"),
        (0, 65, "Invalid offset + byte size for shared memory region: 'a'"),
        (60, 5, "Invalid offset + byte size for shared memory region: 'a'"),
        (8, (1 << 64) - 9, "Invalid offset + byte size for shared memory region: 'a'"),
        (
            8,
            (1 << 64) - 8,
            "Integer overflow detected: byte_size (18446744073709551608) + offset (8) exceeds "
            "maximum value (18446744073709551615) for region 'a'",
        ),
        (8, -4, "Invalid offset + byte size for shared memory region: 'a'"),
    ],
)
def test_views_stay_inside_the_region(
    regions: SharedMemoryRegions, offset: int, byte_size: int, text: str
) -> None:
    regions.register_system("a", "/two_pages", 0, 64)
    with pytest.raises(InvalidArgumentError) as caught:
        regions.view("a", offset, byte_size)
    assert caught.value.message == text


def test_an_object_that_shrank_is_an_error(regions: SharedMemoryRegions, objects: Path) -> None:
    regions.register_system("a", "/two_pages", PAGE, 64)
    with (objects / "two_pages").open("r+b") as file:
        file.truncate(PAGE + 32)
    assert len(regions.view("a", 0, 32)) == 32
    with pytest.raises(InvalidArgumentError, match="made smaller"):
        regions.view("a", 0, 33)


def test_a_region_stays_mapped_while_it_is_used(
    regions: SharedMemoryRegions, objects: Path
) -> None:
    regions.register_system("a", "/two_pages", 0, 64)
    view = regions.view("a", 0, 4)
    regions.unregister_system("a")
    assert [region.byte_size for region in regions.system_status("a")] == [64]
    second = regions.view("a", 2, 2)
    view[:] = b"late"
    assert (objects / "two_pages").read_bytes()[:4] == b"late"
    regions.register_system("a", "/two_pages", 0, 32)
    assert bytes(regions.view("a", 0, 4)) == b"late"
    assert [region.byte_size for region in regions.system_status()] == [32]
    regions.unregister_system()
    assert [region.byte_size for region in regions.system_status()] == [64]
    del view
    assert bytes(second) == b"te"
    assert [region.byte_size for region in regions.system_status()] == [64]
    del second
    assert regions.system_status() == []
    with pytest.raises(NotFoundError, match="Unable to find shared memory region: 'a'"):
        regions.view("a", 0, 4)


def test_unregistering_knows_no_error(regions: SharedMemoryRegions) -> None:
    regions.unregister_system("never")
    regions.unregister_cuda("never")
    regions.register_system("a", "/two_pages", 0, 64)
    regions.register_system("b", "/other", 0, 64)
    regions.unregister_system("a")
    assert [region.name for region in regions.system_status()] == ["b"]
    regions.unregister_cuda()
    assert [region.name for region in regions.system_status()] == ["b"]
    regions.unregister_system()
    assert regions.system_status() == []


def test_a_region_without_a_name_does_not_save_the_others(regions: SharedMemoryRegions) -> None:
    regions.register_system("", "/two_pages", 0, 64)
    regions.register_system("b", "/other", 0, 64)
    regions.unregister_system("")
    assert regions.system_status() == []


def test_unknown_names_are_not_found(regions: SharedMemoryRegions) -> None:
    regions.register_system("a", "/two_pages", 0, 64)
    with pytest.raises(NotFoundError, match="Unable to find system shared memory region: 'z'"):
        regions.system_status("z")
    with pytest.raises(NotFoundError, match="Unable to find cuda shared memory region: 'z'"):
        regions.cuda_status("z")
    with pytest.raises(NotFoundError, match="registered as system shared memory, not CUDA"):
        regions.cuda_status("a")


def test_gpu_memory_is_refused_in_the_words_of_a_server_without_a_gpu(
    regions: SharedMemoryRegions,
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        regions.register_cuda("x")
    assert caught.value.message == "failed to register shared memory region: invalid args"


def test_a_server_that_does_not_allow_it_names_the_option(objects: Path) -> None:
    regions = SharedMemoryRegions(is_client_use_allowed=False, objects=objects)
    text = (
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to "
        "enable."
    )
    for call in (
        lambda: regions.register_system("a", "/two_pages", 0, 64),
        lambda: regions.register_cuda("a"),
        lambda: regions.unregister_system("a"),
        regions.unregister_cuda,
        lambda: regions.view("a", 0, 1),
    ):
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert caught.value.message == text
    assert regions.system_status() == []
