"""Checkpoints of Hugging Face's Trainer, with dropout, accumulation and rotation."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import trainguard as tg


class Phrases(torch.utils.data.Dataset):
    """Numbers that count up."""

    def __len__(self):
        """Return how many there are."""
        return 24

    def __getitem__(self, index):
        """Return one of them."""
        ids = (index * 7 + torch.arange(12)) % 50
        return {"input_ids": ids, "labels": ids}


def train(output_dir: str, resume=False, **options):
    """Train a tiny GPT-2 for 12 steps, and save every third."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    arguments = TrainingArguments(
        output_dir,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        warmup_steps=2,
        save_steps=3,
        save_total_limit=2,
        logging_steps=1,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
        **options,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Phrases())
    trainer.train(resume_from_checkpoint=resume)


def train_with_weights_alone(output_dir: str, resume=False):
    """Save the weights alone, to have smaller files, and go on from them."""
    start = get_last_checkpoint(output_dir) if resume else None
    train(output_dir, resume=start, save_only_model=True)


WRITTEN = "a save that is cut off leaves a folder that the Trainer takes for the newest checkpoint"

trainer = tg.Checkpoint(train, keep=2, allow={"checkpoint_write_is_atomic": WRITTEN})
weights_alone = tg.Checkpoint(
    train_with_weights_alone,
    allow={
        "checkpoint_is_complete": "save_only_model=True leaves the optimizer out",
        "checkpoint_write_is_atomic": WRITTEN,
    },
)
