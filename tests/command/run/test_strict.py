"""--strict: notes fail too."""

CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 0.01)"  # binds on every step: a note
RARE = "clipping_is_rare"


def test_notes(folder) -> None:
    """A note is told and does not fail, unless it is asked to."""
    folder.trains(inside=CLIP)
    done = folder.run("train.py")
    assert done.returncode == 0
    assert f"\n  note      {RARE}: " in done.stdout
    for option, settings in (["--strict"], ""), ([], "[tool.trainguard]\nstrict = true\n"):
        folder.write("pyproject.toml", settings)
        strict = folder.run(*option, "train.py")
        assert strict.returncode == 1
        assert f"\n{RARE}: " in strict.stdout
        assert "  note  " not in strict.stdout
