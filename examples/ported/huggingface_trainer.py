"""Pairs of sentences, with the Trainer. After the page "Fine-tuning" of huggingface.co/docs/transformers (Apache-2.0)."""

import numpy as np
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

import forethought as ft  # new

dataset = load_dataset("nyu-mll/glue", "mrpc")
tokenizer = AutoTokenizer.from_pretrained("google-bert/bert-base-cased")


def tokenize(examples):
    return tokenizer(examples["sentence1"], examples["sentence2"], padding="max_length", truncation=True)


dataset = dataset.map(tokenize, batched=True)
model = AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-cased", num_labels=2)


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float(np.mean(np.argmax(logits, axis=-1) == labels))}


training_args = TrainingArguments(output_dir="mrpc", eval_strategy="epoch", save_strategy="no", report_to=[])
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=dataset["train"],
    eval_dataset=dataset["validation"],
    compute_metrics=compute_metrics,
)
plan = ft.plan(examples=len(dataset["train"]), budget=ft.Budget(8, 1e-5), epochs=3, batch=64)  # new
private = ft.private_trainer(trainer, plan)  # new
trainer.train()
print(private.finish().statement.epsilon)  # new
