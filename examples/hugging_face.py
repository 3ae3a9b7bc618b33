"""Hugging Face models, as they are: a BERT classifier in full and a LoRA on a GPT-2.

Small networks with random weights, and text that is already on this machine: Python's language
reference and scikit-learn's documentation. Run me with `python examples/hugging_face.py`
(`pip install transformers peft` first); `bert` or `gpt2` behind it runs one of the two.
"""

import inspect
import sys
import zlib
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from sklearn.utils.discovery import all_estimators, all_functions
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, random_split
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import forethought as ft


def python_text() -> str:
    return "\n".join(topics.values())


def scikit_learn_text() -> str:
    found = [*all_estimators(), *all_functions()]
    return "\n".join(inspect.getdoc(item) or "" for _, item in found)


# A BERT classifier, every weight trained: whose documentation is this line from?


class Lines(Dataset):
    """Lines of both texts as ({"input_ids", "attention_mask"}, label), padded to one length."""

    def __init__(self, words: int = 24, vocabulary: int = 2048) -> None:
        self.words, self.vocabulary = words, vocabulary
        texts = (python_text(), scikit_learn_text())
        kept = [
            [line.split() for line in text.splitlines() if len(line.split()) >= 6] for text in texts
        ]
        each = min(len(lines) for lines in kept)
        self.records = [(line, label) for label in (0, 1) for line in kept[label][:each]]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, record: int) -> tuple[dict[str, Tensor], Tensor]:
        line, label = self.records[record]
        ids = torch.zeros(self.words, dtype=torch.long)
        # Hashed, since a vocabulary counted on private lines would tell of them.
        for place, word in enumerate(line[: self.words]):
            ids[place] = 1 + zlib.crc32(word.lower().encode()) % (self.vocabulary - 1)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}, torch.tensor(label)


def whole_bert() -> float:
    """Train all weights of a small BERT privately; the share of held-out lines it gets right."""
    lines = Lines()
    private, held_out = random_split(lines, [0.9, 0.1], torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=lines.vocabulary, hidden_size=64, num_hidden_layers=2,
            num_attention_heads=4, intermediate_size=128, max_position_embeddings=32,
        )
    )  # fmt: skip

    def loss(outputs, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs.logits, labels, reduction="none")

    plan = ft.plan(
        examples=len(private), budget=ft.Budget(epsilon=3.0, delta=1e-5), epochs=3, batch=256
    )
    run = ft.train(model, private, plan, loss=loss)
    print(*run.statement.sentences(), sep="\n")

    right = 0
    model.eval()
    with torch.no_grad():
        for inputs, labels in torch.utils.data.DataLoader(held_out, batch_size=256):
            right += int((model(**inputs).logits.argmax(1) == labels).sum())
    return right / len(held_out)


# A LoRA on a GPT-2: public text first, without privacy; the private text through the adapter only


class Bytes(Dataset):
    """Pieces of a text, each a record, for a model that computes its own loss."""

    def __init__(self, text: str, length: int = 32) -> None:
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
        self.pieces = data[: len(data) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, record: int) -> tuple[dict[str, Tensor], Tensor]:
        piece = self.pieces[record]
        return {"input_ids": piece, "labels": piece}, torch.tensor(0)


def own_loss(outputs, _: Tensor) -> Tensor:
    """What the model says itself: the mean over a record's bytes."""
    return outputs.loss


def lora_on_gpt2() -> tuple[float, float]:
    """Nats a byte on held-out private text, before and after private training of the adapter."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=4,
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    public = torch.utils.data.DataLoader(Bytes(python_text()), batch_size=64, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for inputs, _ in public:
        optimizer.zero_grad()
        model(**inputs).loss.backward()
        optimizer.step()

    private, held_out = random_split(
        Bytes(scikit_learn_text()[:50_000]), [0.9, 0.1], torch.Generator().manual_seed(0)
    )
    before = nats_per_byte(model, held_out)
    targets = ["c_attn", "c_fc", "c_proj"]
    adapted = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=16, target_modules=targets, fan_in_fan_out=True)
    )
    plan = ft.plan(
        examples=len(private),
        budget=ft.Budget(epsilon=8.0, delta=1e-5),
        epochs=1,
        batch=64,
        optimizer="adam",
        learning_rate=3e-3,  # that of the public text
    )
    run = ft.train(adapted, private, plan, loss=own_loss)
    print(*run.statement.sentences(), sep="\n")
    return before, nats_per_byte(adapted, held_out)


def nats_per_byte(model: nn.Module, pieces: Dataset) -> float:
    model.eval()
    with torch.no_grad():
        losses = [
            model(**inputs).loss * len(inputs["labels"])
            for inputs, _ in torch.utils.data.DataLoader(pieces, batch_size=256)
        ]
    model.train()
    return float(sum(losses)) / len(pieces)


if __name__ == "__main__":
    which = sys.argv[1:] or ["bert", "gpt2"]
    if "bert" in which:
        print(f"BERT: {whole_bert():.1%} of held-out lines are told apart")
    if "gpt2" in which:
        print("GPT-2 with LoRA: {:.3f} nats a byte before, {:.3f} after".format(*lora_on_gpt2()))
