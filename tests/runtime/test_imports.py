"""A rank's process pauses garbage collection while it imports torch."""

import gc

from runtime.__main__ import _pause_garbage_collection


def test_nothing_is_collected_while_modules_are_imported():
    """Garbage collection pauses during the import, and later skips the imported objects."""
    try:
        with _pause_garbage_collection():
            made = [gc.isenabled()]

        assert made == [False]
        assert gc.isenabled()
        assert not any(each is made for each in gc.get_objects())
    finally:
        gc.unfreeze()
