"""Tune a Hugging Face Trainer: TransformersReport reports each evaluation.
The model is tiny and starts at random.
"""

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

import tuner
from tuner.integrations.transformers import TransformersReport


class Sentences(torch.utils.data.Dataset):
    """Texts of eight tokens; the first one decides the class."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(2, 50, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens[0] % 2}


def objective(trial):
    set_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=trial["hidden"],
        intermediate_size=2 * trial["hidden"],
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=8,
    )
    arguments = TrainingArguments(
        output_dir=trial.output_dir,
        num_train_epochs=3,
        learning_rate=trial["lr"],
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Sentences(),
        eval_dataset=Sentences(),
        callbacks=[TransformersReport("eval_loss")],
    )
    trainer.train()


parameters = {"lr": tuner.Float(1e-5, 1e-2, log=True), "hidden": tuner.Int(8, 32, step=4)}
study = tuner.minimize(objective, parameters, trials=20, pruning="median", name="transformers")
print(study.best.parameters, study.best.value)
