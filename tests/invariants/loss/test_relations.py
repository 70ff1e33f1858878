"""relations_hold: what a team has declared of edited inputs."""


def test_a_relation_that_holds(sample, judged) -> None:
    """Where `then` allowed all that was drawn, nothing is found."""
    assert judged("relations_hold", sample("relation", 2.0, label="flip")) == []


def test_a_relation_that_is_broken(sample, judged) -> None:
    """It is told by its name, with how many of the drawn batches break it."""
    bad = sample("relation", 2.0, reference=1.0, scale=1.0, label="flip", bad=3, points=32)
    (found,) = judged("relations_hold", bad)
    assert found.summary == "the relation 'flip' of `nll` is broken"
    assert str(found.at) == "3 of 32 batches that were drawn"
    assert str(found.measured) == "2 with the inputs edited"
