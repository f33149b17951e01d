import hashlib

from agentrl.core.trained_hash import ROOT, running_hash

A, B = "a" * 64, "b" * 64


def test_the_hash_of_an_update_is_that_of_its_sorted_bodies_after_the_one_before() -> None:
    first = running_hash(ROOT, [B, A])
    assert first == hashlib.sha256((A + B).encode()).hexdigest()
    assert running_hash(first, [A]) == hashlib.sha256((first + A).encode()).hexdigest()


def test_an_update_that_is_lost_or_repeated_changes_every_later_hash() -> None:
    once = running_hash(running_hash(ROOT, [A]), [B])
    assert running_hash(running_hash(once, [B]), [A]) != running_hash(once, [A])
    assert running_hash(ROOT, [B]) != once
