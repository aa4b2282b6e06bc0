"""A request may kill at most two replicas."""

from __future__ import annotations

from llmgw.router.selection.quarantine import Quarantine, fingerprint
from llmgw.router.selection.state import Death

POISON = fingerprint("/v1/completions", b'{"prompt":"bad"}')


def test_one_death_makes_a_suspect_and_two_make_a_refusal() -> None:
    quarantine = Quarantine()
    assert quarantine.is_empty
    assert quarantine.died(POISON, Death(0.0)) == 1
    assert quarantine.is_suspect(POISON, 1.0)
    assert not quarantine.refuses(POISON, 1.0)
    assert quarantine.died(POISON, Death(2.0)) == 2
    assert quarantine.refuses(POISON, 3.0)


def test_copies_that_were_in_flight_in_one_death_count_once() -> None:
    quarantine = Quarantine()
    death = Death(0.0)
    assert [quarantine.died(POISON, death) for _ in range(3)] == [1, 1, 1]
    assert quarantine.is_suspect(POISON, 1.0)


def test_it_is_forgotten_ten_minutes_after_the_last_death() -> None:
    quarantine = Quarantine()
    quarantine.died(POISON, Death(0.0))
    quarantine.died(POISON, Death(100.0))
    assert quarantine.refuses(POISON, 699.0)
    assert not quarantine.refuses(POISON, 700.0)
    assert quarantine.is_empty


def test_those_that_never_come_again_are_forgotten_as_well() -> None:
    quarantine = Quarantine()
    death = Death(0.0)
    for number in range(100):
        quarantine.died(fingerprint("/", b"%d" % number), death)
    assert not quarantine.is_suspect(POISON, 600.0)
    assert quarantine.is_empty, "and no request need be hashed any more"


def test_a_flood_of_suspects_does_not_grow_without_end() -> None:
    quarantine = Quarantine()
    death = Death(0.0)
    for number in range(10_000):
        quarantine.died(fingerprint("/", b"%d" % number), death)
    assert not quarantine.is_suspect(fingerprint("/", b"0"), 0.0)
    assert quarantine.is_suspect(fingerprint("/", b"9999"), 0.0)


def test_path_length_beginning_and_end_make_the_fingerprint() -> None:
    big = b"x" * 300_000
    prints = {
        fingerprint("/a", big),
        fingerprint("/b", big),
        fingerprint("/a", big + b"x"),
        fingerprint("/a", b"y" + big[1:]),
        fingerprint("/a", big[:-1] + b"y"),
    }
    assert len(prints) == 5
