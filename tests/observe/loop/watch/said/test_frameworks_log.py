"""Numbers that are handed to the `log` of a framework."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.observe.loop.watch.said.talk import heard, replaced, said, train
from trainguard.observe.loop.recorder import Recorder


@pytest.fixture(autouse=True)
def _restored():
    """See that no function of any logger is replaced once a test is over."""
    yield
    assert replaced() == []


@pytest.mark.filterwarnings("default")  # of Lightning and of torch, about each other
def test_lightning_is_heard(tmp_path) -> None:
    """`self.log` and `self.log_dict` are heard once, from the module's own lines."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        """Fits a line."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.losses = nn.Linear(4, 1), []

        def training_step(self, batch, index):
            """Log the loss, and return it."""
            inputs, target = batch
            loss = F.mse_loss(self.layer(inputs), target)
            self.losses.append(loss.item())
            self.log("train_loss", loss)
            self.log_dict({"twice": 2 * loss, "index": index})
            return loss

        def configure_optimizers(self):
            """Return SGD."""
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = DataLoader(TensorDataset(torch.randn(12, 4), torch.randn(12, 1)), batch_size=4)
    with Recorder("x") as recorder:
        trainer = lightning.Trainer(
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            default_root_dir=tmp_path,
        )
        module = Module()
        trainer.fit(module, data)
    assert said(recorder, "lightning", "train_loss") == module.losses
    assert said(recorder, "lightning", "twice") == [2 * loss for loss in module.losses]
    assert len(heard(recorder, "lightning")) == 9
    assert {e.source.rpartition(":")[0] for e in heard(recorder, "lightning")} == {__file__}


@pytest.mark.filterwarnings("default")
def test_transformers_is_heard(tmp_path, capsys) -> None:
    """What HF Trainer logs is heard as it is, and again as it is printed."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    tokens = torch.arange(8).repeat(8, 1)
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with Recorder("x") as recorder:
        trainer = transformers.Trainer(
            model=transformers.GPT2LMHeadModel(config),
            args=transformers.TrainingArguments(
                output_dir=str(tmp_path),
                per_device_train_batch_size=4,
                max_steps=3,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=data,
        )
        trainer.train()
    logs = trainer.state.log_history
    for name in ("loss", "grad_norm", "learning_rate"):
        values = [log[name] for log in logs if name in log]
        assert said(recorder, "transformers", name) == values
        printed = [event for event in heard(recorder, "stdout") if event.name == name]
        assert len(printed) == len(values) == 3
        for event, value in zip(printed, values, strict=True):
            assert abs(event.value - value) <= event.rounding * (1 + 1e-9)
    assert "'grad_norm'" in capsys.readouterr().out


@pytest.mark.filterwarnings("default")
def test_accelerate_is_heard(tmp_path) -> None:
    """`Accelerator.log` is heard, and the tracker under it by its own name."""
    accelerate = pytest.importorskip("accelerate")
    with Recorder("x") as recorder:
        accelerator = accelerate.Accelerator(
            cpu=True, log_with="tensorboard", project_dir=str(tmp_path)
        )
        accelerator.init_trackers("project")
        losses = train(lambda loss, step: accelerator.log({"loss": loss.item()}, step=step))
        accelerator.end_training()
    assert said(recorder, "accelerate", "loss") == losses
    assert said(recorder, "tensorboard", "loss") == losses
