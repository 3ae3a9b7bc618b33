"""An adapter. After examples/sequence_classification/LoRA.ipynb of github.com/huggingface/peft (Apache-2.0)."""

import evaluate
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    default_data_collator,
    get_linear_schedule_with_warmup,
)

import forethought as ft  # new

batch_size, num_epochs, lr = 32, 3, 3e-4
model_name_or_path = "roberta-large"
peft_config = LoraConfig(task_type="SEQ_CLS", inference_mode=False, r=8, lora_alpha=16, lora_dropout=0.1)
tokenizer = AutoTokenizer.from_pretrained(model_name_or_path)
datasets = load_dataset("glue", "mrpc")
metric = evaluate.load("glue", "mrpc")


def tokenize_function(examples):
    pair = examples["sentence1"], examples["sentence2"]
    return tokenizer(*pair, truncation=True, padding="max_length", max_length=128)  # was: max_length=None


columns = [name for name in datasets["train"].column_names if name != "label"]
tokenized = datasets.map(tokenize_function, batched=True, remove_columns=columns)
tokenized = tokenized.rename_column("label", "labels")
train_dataloader = DataLoader(tokenized["train"], shuffle=True, collate_fn=default_data_collator, batch_size=batch_size)
eval_dataloader = DataLoader(tokenized["validation"], collate_fn=default_data_collator, batch_size=batch_size)

model = AutoModelForSequenceClassification.from_pretrained(model_name_or_path, return_dict=True)
model = get_peft_model(model, peft_config)
model.print_trainable_parameters()
optimizer = AdamW(params=model.parameters(), lr=lr)
steps = len(train_dataloader) * num_epochs
lr_scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0.06 * steps, num_training_steps=steps)
plan = ft.plan(examples=len(tokenized["train"]), budget=ft.Budget(8, 1e-5), epochs=num_epochs, batch=batch_size)  # new
train_dataloader, optimizer = ft.private(model, optimizer, train_dataloader, plan)  # new

for epoch in range(num_epochs):
    model.train()
    for batch in train_dataloader:
        # was: batch.to(device)
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()

    model.eval()
    for batch in eval_dataloader:
        with torch.no_grad():
            outputs = model(**batch)
        metric.add_batch(predictions=outputs.logits.argmax(dim=-1), references=batch["labels"])
    print(f"epoch {epoch}:", metric.compute())
