"""Environment of a program that enters an allocation."""

from __future__ import annotations

from calabash.adapters.pool.entering import environment_with, outside_of_slices

SLICE = {
    "CALABASH_SLOT": "/slot",
    "LD_PRELOAD": "/lib/libcalabash.so:/lib/mine.so",
    "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
}


def test_a_program_on_remote_cards_inside_a_slice_is_not_led_to_the_cards_of_that_slice() -> None:
    found = environment_with(outside_of_slices(SLICE), {"CALABASH_REMOTE": "file:key"}, brokered=True)
    assert found == {"LD_PRELOAD": "/lib/mine.so", "CALABASH_REMOTE": "file:key"}


def test_what_its_user_chose_stays() -> None:
    assert outside_of_slices({**SLICE, "CUDA_VISIBLE_DEVICES": "0"})["CUDA_VISIBLE_DEVICES"] == "0"
    outside = {"CUDA_VISIBLE_DEVICES": "GPU-1", "LD_PRELOAD": "/lib/mine.so"}
    assert outside_of_slices(outside) == outside
