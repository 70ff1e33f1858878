"""What `trainguard init --write` adds to a project, where it takes nothing away."""

import tomllib

import pytest

from trainguard.command.project_files import find_project_files
from trainguard.core.errors import DeclarationError

WORKFLOW = ".github/workflows/trainguard.yml"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a folder that commands are given in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(project):
    """Return the settings that trainguard finds in a project."""
    return tomllib.loads((project / "pyproject.toml").read_text())["tool"]["trainguard"]


def test_an_empty_folder(project) -> None:
    """Both files are written, and shown as they are."""
    told = find_project_files().write()
    assert settings(project) == {"files": ["guard_*.py"]}
    text = (project / WORKFLOW).read_text()
    assert "      - run: pytest --trainguard -m trainguard\n" in text
    assert "-e ." not in text
    for line in (*text.splitlines(), "[tool.trainguard]"):
        assert f"+ {line}".rstrip() in told.splitlines()


def test_the_workflow_is_one(project) -> None:
    """It is YAML with the steps of a job, and installs what the project is installed by."""
    yaml = pytest.importorskip("yaml")
    (project / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (project / "requirements.txt").touch()
    (job,) = yaml.safe_load(find_project_files().steps)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [
        "python -m pip install -e .",
        "python -m pip install -r requirements.txt",
        "python -m pip install trainguard",
        "pytest --trainguard -m trainguard",
    ]


@pytest.mark.parametrize("old", [b"[a]\r\nb = 1\r\n", b"# mine\n[tool.x]\nb = 1", b"\n", b""])
def test_what_stands_there_stays(project, old) -> None:
    """Settings come after it, in lines that end as its own do; a second time nothing is added."""
    file = project / "pyproject.toml"
    file.write_bytes(old)
    assert "[tool.trainguard]" in find_project_files().offer()
    find_project_files().write()
    assert find_project_files().offer() == ""
    once = file.read_bytes()
    assert once.startswith(old)
    assert settings(project)
    assert (b"\r\n" in old) is (b"\n" not in once.replace(b"\r\n", b""))
    told = find_project_files().write()
    assert file.read_bytes() == once
    assert "pyproject.toml is left as it is: it has a [tool.trainguard]." in told
    assert f"{WORKFLOW} is left as it is: it is there already." in told


def test_what_nothing_can_be_added_to(project) -> None:
    """It is told, and the file is as it was; where it is no TOML, nothing is begun."""
    file = project / "pyproject.toml"
    file.write_text("tool = {a = 1}\n")
    assert "its tools take no further table, write it by hand." in find_project_files().write()
    assert file.read_text() == "tool = {a = 1}\n"
    file.write_text("[tool")
    with pytest.raises(DeclarationError, match="is no valid TOML"):
        find_project_files()


def test_a_folder_of_a_repository(project, monkeypatch) -> None:
    """The workflow stands where GitHub looks, the settings in the nearest pyproject.toml."""
    (project / ".git").mkdir()
    inner = project / "train" / "scripts"
    inner.mkdir(parents=True)
    (project / "train" / "pyproject.toml").write_text("[project]\n")
    monkeypatch.chdir(inner)
    assert find_project_files().write()
    assert settings(project / "train")
    assert 'working-directory: "train"' in (project / WORKFLOW).read_text()
    assert not (inner / "pyproject.toml").exists()
