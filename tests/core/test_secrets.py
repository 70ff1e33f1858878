"""Values of a command line that must not be written down."""

import pytest

from trainguard.core.secrets import hide_secrets, is_secret

SECRET = {
    "--token abc": "--token ***",
    "--hf_token=abc --lr 3": "--hf_token=*** --lr 3",
    "--api-key sk-1 data": "--api-key *** data",
    "wandb.api_key=abc": "wandb.api_key=***",
    "--db-password 12345": "--db-password ***",
    "--secret-file a.txt": "--secret-file ***",
    "--store https://me:hunter2@host/x": "--store https://me:***@host/x",
    "s3://me:pw@bucket": "s3://me:***@bucket",
}
OPEN = (
    "--key-dim 64", "--max-tokens 128", "--mask-token 103", "--tokenizer bert",
    "--token-dropout=0.1", "--use-token --lr 3", "--keys a b", "--keyboard us", "data=a:b@c", "https://host:80/x",
)  # fmt: skip


@pytest.mark.parametrize("line", SECRET)
def test_a_secret_is_hidden(line: str) -> None:
    """Whether it stands behind its option, behind a sign or in an address."""
    assert [*hide_secrets(line.split())] == SECRET[line].split()


@pytest.mark.parametrize("line", OPEN)
def test_what_is_no_secret_stays(line: str) -> None:
    """Settings of a training are called by the same words."""
    assert [*hide_secrets(line.split())] == line.split()


def test_a_name_of_no_word_says_nothing() -> None:
    """As a single dash."""
    assert not is_secret("-", "abc")
