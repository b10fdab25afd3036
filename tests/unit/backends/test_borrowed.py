import gc
import weakref

import numpy as np

from naiad.backends.borrowed import borrow_array


class Owner:
    def __init__(self) -> None:
        self.memory = np.arange(6, dtype=np.int16)
        self.memory.flags.writeable = False


def test_shares_memory_and_may_be_written() -> None:
    owner = Owner()
    array = borrow_array(owner.memory.ctypes.data, (2, 3), np.int16, owner)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array.flags.writeable
    array[0, 0] = 9
    assert owner.memory[0] == 9


def test_keeps_the_owner_alive_through_views() -> None:
    owner = Owner()
    watch = weakref.ref(owner)
    view = borrow_array(owner.memory.ctypes.data, [6], np.int16, owner)[1:3]
    del owner
    gc.collect()
    assert watch() is not None
    assert view.tolist() == [1, 2]
    del view
    gc.collect()
    assert watch() is None


def test_an_empty_tensor_has_no_address() -> None:
    assert borrow_array(0, (0, 3), np.float32, None).shape == (0, 3)
