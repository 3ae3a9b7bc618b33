"""Pairs of sentences, with accelerate. After examples/nlp_example.py of github.com/huggingface/accelerate (Apache-2.0)."""

import argparse

import evaluate
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    default_data_collator,
    get_linear_schedule_with_warmup,
)

import forethought as ft  # new


def get_dataloaders(batch_size):
    tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
    datasets = load_dataset("nyu-mll/glue", "mrpc")

    def tokenize_function(examples):
        pair = examples["sentence1"], examples["sentence2"]
        return tokenizer(*pair, truncation=True, padding="max_length", max_length=128)  # was: max_length=None

    columns = ["idx", "sentence1", "sentence2"]
    tokenized = datasets.map(tokenize_function, batched=True, remove_columns=columns)
    tokenized = tokenized.rename_column("label", "labels")

    how = {"collate_fn": default_data_collator}
    train = DataLoader(tokenized["train"], shuffle=True, batch_size=batch_size, **how)
    held_out = DataLoader(tokenized["validation"], batch_size=32, **how)
    return train, held_out


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    num_epochs, batch_size = config["num_epochs"], config["batch_size"]
    metric = evaluate.load("glue", "mrpc")
    torch.manual_seed(config["seed"])
    train_dataloader, eval_dataloader = get_dataloaders(batch_size)
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", return_dict=True)
    model = model.to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=100,
        num_training_steps=len(train_dataloader) * num_epochs,
    )
    plan = ft.plan(examples=len(train_dataloader.dataset), budget=ft.Budget(8, 1e-5), epochs=num_epochs, batch=batch_size)  # new
    train_dataloader, optimizer = ft.private(model, optimizer, train_dataloader, plan)  # new
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(num_epochs):
        model.train()
        for batch in train_dataloader:
            # was: batch.to(accelerator.device)
            outputs = model(**batch)
            loss = outputs.loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        model.eval()
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predictions = outputs.logits.argmax(dim=-1)
            found = accelerator.gather_for_metrics((predictions, batch["labels"]))
            metric.add_batch(predictions=found[0], references=found[1])
        accelerator.print(f"epoch {epoch}:", metric.compute())
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", choices=["no", "bf16"])
    parser.add_argument("--cpu", action="store_true")
    training_function({"lr": 2e-5, "num_epochs": 3, "seed": 42, "batch_size": 16}, parser.parse_args())
