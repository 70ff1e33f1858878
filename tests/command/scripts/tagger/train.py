from dataclasses import dataclass

from tagger.corpus import TAGS, WORDS, Tagged, pad
from tagger.losses import token_loss
from transformers import (
    BertConfig,
    BertForTokenClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class Options:
    hidden: int = 32
    epochs: int = 5


class TokenTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = token_loss(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


def main():
    (options,) = HfArgumentParser(Options).parse_args_into_dataclasses()
    set_seed(11)
    config = BertConfig(
        vocab_size=WORDS + 1,
        hidden_size=options.hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=TAGS,
    )
    arguments = TrainingArguments(
        output_dir="runs/tagger",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        warmup_steps=10,
        logging_steps=10,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    trainer = TokenTrainer(
        model=BertForTokenClassification(config),
        args=arguments,
        train_dataset=Tagged(256, 1),
        eval_dataset=Tagged(64, 2),
        data_collator=pad,
    )
    trainer.train()


if __name__ == "__main__":
    main()
