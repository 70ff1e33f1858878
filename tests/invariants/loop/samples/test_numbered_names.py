"""Names that have another number in the data of an evaluation."""

from trainguard.events.probe import Probe


def found(changed: float, names: float) -> Probe:
    """Write what was seen of two tables."""
    row = {"measured": changed, "reference": names, "label": ".vocabs[0]", "source": "train.py:9"}
    return Probe(probe="numberings", **row)


def test_names_with_other_numbers(judged) -> None:
    """More than a tenth of them: the table is named, and told once."""
    (finding,) = judged("numbers_mean_the_same_names", [found(30.0, 40.0), found(9.0, 10.0)])
    assert finding.at == "`vocabs[0]` of its data set"
    assert finding.measured == "30 of 40 names have another number"
    assert finding.source == "train.py:9"
    assert judged("numbers_mean_the_same_names", [found(4.0, 40.0)]) == []
