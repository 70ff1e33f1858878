"""--trainguard-dtypes."""


def test_every_declared_dtype_by_default(project) -> None:
    """Without the option a subject is judged in each dtype that it declares."""
    project.declare("guard_x", "bf16")
    ids = project.collected("--trainguard-select=value_is_finite")
    assert [line.partition("[")[2] for line in ids] == ["cpu-float32]", "cpu-bfloat16]"]


def test_one_dtype(project) -> None:
    """With the option only the declared dtypes that it names are left."""
    project.declare("guard_x", "bf16", "mse")
    ids = project.collected("--trainguard-select=value_is_finite", "--trainguard-dtypes=bfloat16")
    assert ids == ["guard_x.py::bf16::value_is_finite[cpu-bfloat16]"]
