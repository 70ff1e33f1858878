"""Outputs that depend on the tokens they are to predict."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

WORDS, LENGTH, PROMPT = 20, 8, 5


class Model(nn.Module):
    """A character model; `mask` is how far ahead it may look, `style` what it returns."""

    def __init__(self, mask: int | None = 0, style: str = "scores") -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.places = nn.Parameter(torch.randn(LENGTH, 16) / 10)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, WORDS)
        self.mask, self.style = mask, style

    def scores(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores for the token that follows each."""
        size = tokens.shape[1]
        ahead = torch.ones(size, size, dtype=torch.bool).triu(1 + (self.mask or 0))
        hidden = self.words(tokens) + self.places[:size]
        return self.head(self.layer(hidden, src_mask=None if self.mask is None else ahead))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None):
        """Return the scores, flat where asked to, or the loss with them."""
        scores = self.scores(tokens)
        if self.style == "flat":
            return scores.view(-1, WORDS)
        if labels is None:
            return scores
        own = scores[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1)
        return {"loss": F.cross_entropy(*own), "logits": scores}


class Translator(Model):
    """A model of pairs, whose encoder sees all, and whose decoder must not."""

    def forward(self, source: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores for the tokens, given the source."""
        return self.scores(tokens) + self.words(source).mean() * self.scores(tokens)


class Tagger(Model):
    """A recurrent model that reads in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(16, 8, batch_first=True, bidirectional=True)

    def scores(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        return self.head(self.memory(self.words(tokens))[0])


class Prefix(Model):
    """A model that reads the first tokens in both directions."""

    def scores(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores for the token that follows each."""
        ahead = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        ahead[:PROMPT, :PROMPT] = False
        hidden = self.words(tokens) + self.places
        return self.head(self.layer(hidden, src_mask=ahead))


def answered(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Return the loss of what follows a prompt."""
    wanted = following.clone()
    wanted[:, : PROMPT - 1] = -100
    return F.cross_entropy(model(tokens).reshape(-1, WORDS), wanted.reshape(-1))


def outside(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Return the loss of scores against the tokens that follow."""
    return F.cross_entropy(model(tokens).view(-1, WORDS), following.reshape(-1))


def named(model: nn.Module, tokens: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Let the model shift its labels, which are its input."""
    return model(labels=tokens, tokens=tokens)["loss"]


def ignored(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Leave some targets out."""
    some = following.masked_fill(torch.rand(following.shape) < 0.3, -100)
    return F.nll_loss(model(tokens).log_softmax(2).transpose(1, 2), some)


def left_out(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Leave some targets out by the number of a token, as of padding or of a document's begin."""
    some = following.masked_fill(torch.rand(following.shape) < 0.3, 0)
    return F.cross_entropy(model(tokens).transpose(1, 2), some, ignore_index=0)


def translated(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Translate other tokens into these."""
    return F.cross_entropy(model(tokens.flip(1), tokens).transpose(1, 2), following)


def copied(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Restore tokens from themselves, which is not to predict them."""
    return F.cross_entropy(model(tokens, tokens).transpose(1, 2), following)


class Shifting(Model):
    """A model that shifts its tokens by itself, and sees none that it predicts."""

    def scores(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of each token, given those before it."""
        return super().scores(nn.functional.pad(tokens[:, :-1], (1, 0)))


class Pointwise(Model):
    """A model of single tokens."""

    def scores(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of each token."""
        return self.head(self.words(tokens))


class WithLoss(Model):
    """A model that returns the loss with the scores, as nanoGPT does."""

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor):
        """Return both."""
        scores = self.scores(tokens)
        return scores, F.cross_entropy(scores.view(-1, WORDS), targets.reshape(-1))


def unshifted(model: nn.Module, tokens: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Forget to shift the targets."""
    return F.cross_entropy(model(tokens).view(-1, WORDS), tokens.reshape(-1))


def given(model: nn.Module, tokens: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Forget it, and give the targets to the model."""
    return model(tokens, tokens.clone())[1]


def denoised(model: nn.Module, tokens: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Restore tokens of which some are hidden; only these count."""
    hidden = torch.rand(tokens.shape) < 0.3
    scores = model(tokens.masked_fill(hidden, 0)).transpose(1, 2)
    return F.cross_entropy(scores, tokens.masked_fill(~hidden, -100))


def tagged(model: nn.Module, tokens: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Predict something about each token."""
    return F.cross_entropy(model(tokens).transpose(1, 2), tokens % 3)


def restored(model: nn.Module, tokens: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Predict tokens that were left out, as BERT does."""
    return F.cross_entropy(model(tokens * 0 + tokens.flip(0)).transpose(1, 2), tokens)


def train(model: nn.Module, loss, *, constant: bool = False, steps: int = 4) -> nn.Module:
    """Train on windows of a text."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    text = torch.randint(WORDS, (500,))
    for _ in range(steps):
        starts = torch.randint(490, (6,))
        tokens = torch.stack([text[i : i + LENGTH] for i in starts])
        following = torch.stack([text[i + 1 : i + LENGTH + 1] for i in starts])
        if constant:
            tokens = following = tokens[:, :1].repeat(1, LENGTH)
        optimizer.zero_grad()
        loss(model, tokens, following).backward()
        optimizer.step()
    return model


def probes(make, loss=outside, *, probe: bool = True, kind="future", **options) -> list[Probe]:
    """Record a training and return its probes of this kind."""
    torch.manual_seed(0)
    with Recorder("x", probe=probe) as recorder:
        train(make(), loss, **options)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == kind]


@pytest.mark.parametrize("mask", [None, 1])
@pytest.mark.parametrize("loss", [outside, named, ignored, left_out])
def test_looking_ahead_is_told(mask, loss) -> None:
    """A mask that is missing, or off by one, is told wherever the loss is computed."""
    (probe,) = probes(lambda: Model(mask), loss)
    assert probe.measured > 100 * probe.reference > 0
    assert (probe.label, probe.step) == ("next token, Model", 1)
    assert probe.source.startswith(f"{__file__}:")


def test_flat_scores_and_other_models_are_told() -> None:
    """Scores may be flat, and a decoder may stand beside an encoder."""
    assert len(probes(lambda: Model(None, "flat"))) == 1
    assert len(probes(lambda: Translator(None), translated)) == 1
    assert len(probes(Tagger)) == 1
    assert len(probes(lambda: Model(None), answered)) == 1


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (Model, outside),
        (Model, named),
        (Model, ignored),
        (Model, left_out),
        (lambda: Model(style="flat"), outside),
        (Translator, translated),
        (lambda: Translator(None), copied),
        (lambda: Model(None), tagged),
        (lambda: Model(None), restored),
        (Prefix, answered),
    ],
)
def test_what_may_look_is_not(make, loss) -> None:
    """Causal models do not look ahead; taggers, encoders, autoencoders and prompts may."""
    assert probes(make, loss) == []


@pytest.mark.parametrize(("make", "loss"), [(Model, unshifted), (WithLoss, given)])
def test_a_token_that_is_its_own_target_is_told(make, loss) -> None:
    """A causal model that sees what it is to say, wherever the loss is computed."""
    (probe,) = probes(make, loss, kind="present")
    assert probe.measured > 100 * probe.reference > 0
    assert probe.label == f"its own token, {make.__name__}"


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (Model, outside),
        (Model, denoised),
        (Model, tagged),
        (Shifting, unshifted),
        (Pointwise, unshifted),
        (Tagger, unshifted),
        (lambda: Model(None), unshifted),
    ],
)
def test_what_may_see_its_target_is_not(make, loss) -> None:
    """Models that shift, taggers, autoencoders and models of single tokens."""
    assert probes(make, loss, kind="present") == []


def shifted(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Give labels that are shifted to a model that shifts them."""
    return model(tokens, following)["loss"]


def beside(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Predict the next token too."""
    scores = model(tokens, following)
    return scores["loss"] + F.cross_entropy(scores["logits"].flatten(0, 1), following.flatten())


def test_labels_that_are_shifted_twice_are_told() -> None:
    """A model that shifts is given what is shifted already."""
    (probe,) = probes(Model, shifted, kind="shifted")
    assert (probe.measured, probe.reference, probe.label) == (2.0, 1.0, "Model")


@pytest.mark.parametrize("loss", [outside, named, ignored, unshifted, beside])
def test_labels_that_are_shifted_once_are_not(loss) -> None:
    """Inside of the model or outside, with labels of its own or none, and beside another loss."""
    assert probes(Model, loss, kind="shifted") == []


def cut(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Shift labels in the loop that are shifted already."""
    scores = model(tokens)[:, :-1].reshape(-1, WORDS)
    return F.cross_entropy(scores, following[:, 1:].reshape(-1))


def picked(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Do so in a loss by hand."""
    scores = model(tokens).log_softmax(-1)[:, :-1].reshape(-1, WORDS)
    return -scores[torch.arange(len(scores)), following[:, 1:].reshape(-1)].mean()


def rolled(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Roll labels that are shifted already, so that each row begins anew at its end."""
    return F.cross_entropy(model(tokens).mT, following.roll(-1, 1))


def padded(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Shift labels of rows that end early, one of them after two tokens."""
    places, ends = torch.arange(LENGTH), torch.randint(2, LENGTH, (len(tokens), 1))
    tokens = tokens.masked_fill(places >= ends, 0)
    return cut(model, tokens, following.masked_fill(places >= ends, -100))


def late(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Leave the first place out."""
    scores = model(tokens)[:, 1:].reshape(-1, WORDS)
    return F.cross_entropy(scores, following[:, 1:].reshape(-1))


class Late(Model):
    """A model that is given its labels, and does not count the first place."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor):
        """Return the loss with the scores."""
        scores = self.scores(tokens)
        loss = F.cross_entropy(scores[:, 1:].reshape(-1, WORDS), labels[:, 1:].reshape(-1))
        return {"loss": loss, "logits": scores}


def further(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Predict on purpose what comes after the next one."""
    return F.cross_entropy(model(tokens[:, :-1]).mT, following[:, 1:])


class InTurns:
    """A loss that is of the next token in one step, and of the one after it in all others."""

    def __init__(self, turn: int) -> None:
        self.step, self.turn = -1, turn

    def __call__(self, model: nn.Module, tokens: torch.Tensor, following: torch.Tensor):
        """Return the loss whose turn it is."""
        self.step += 1
        return (outside if self.step == self.turn else cut)(model, tokens, following)


def frozen() -> Model:
    """Return a model of which only the head learns."""
    model = Model().requires_grad_(False)
    model.head.requires_grad_(True)
    return model


@pytest.mark.parametrize("loss", [cut, picked, rolled, padded])
def test_labels_that_the_loop_shifts_again_are_told(loss) -> None:
    """By cutting, by rolling, in a loss by hand and of padded rows."""
    (probe,) = probes(Model, loss, kind="shifted", steps=10)
    assert (probe.measured, probe.reference, probe.label, probe.step) == (2.0, 1.0, "Model", 8)


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (Model, late),
        (Late, shifted),
        (Model, further),
        (Model, InTurns(2)),
        (Model, InTurns(8)),
        (frozen, cut),
        (Tagger, cut),
    ],
)
def test_what_begins_later_or_is_meant_is_not(make, loss) -> None:
    """First places that do not count, heads in turns or on what is frozen, models that see all."""
    assert probes(make, loss, kind="shifted", steps=10) == []


def test_one_token_all_along_says_nothing() -> None:
    """Where a token is followed by itself, it cannot be said which of them is predicted."""
    assert probes(lambda: Model(None), constant=True) == []


def test_probes_can_be_switched_off() -> None:
    """Without probes nothing is tried."""
    assert probes(lambda: Model(None), probe=False) == []


def test_bfloat16_is_not_taken_for_a_change() -> None:
    """A causal model under autocast is silent, and one that looks ahead is not."""

    def cast(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Compute the loss under autocast."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return outside(model, tokens, following)

    assert probes(Model, cast) == []
    assert len(probes(lambda: Model(None), cast)) == 1
