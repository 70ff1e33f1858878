"""Hugging Face's Trainer on a tiny, random GPT-2, with accumulation and an evaluation per epoch."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Phrases(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(0, 50, (count, 1), generator=generator)
        self.ids = (start + torch.arange(32)) % 50

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


config = GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        learning_rate=1e-3,
        warmup_steps=3,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
    )
    trainer = Trainer(model, args, train_dataset=Phrases(64, 0), eval_dataset=Phrases(16, 1))
    trainer.train()
