"""Write a small Llama-style model folder: an architecture, a byte-level tokenizer, no weights.

The server makes up the weights itself (`--load-format dummy`), so a folder is some kilobytes. The tokenizer makes one
token of each character of plain text, so a prompt's length is known before it is sent. Plain files, standard library
only: the tests can write them without the server's environment.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib

HEAD = 32  # width of one attention head
CONTEXT = 8192  # tokens: prompt and answer together
SPECIAL = ("<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|pad|>")
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"
TEMPLATE_TOKENS = 2  # a chat of one user message costs these above its characters


@dataclasses.dataclass(frozen=True)
class Size:
    """How much one step computes: the width of the hidden state, and how many layers."""

    hidden: int
    layers: int


SIZES = {
    # Four requests make some 90 steps a second on one core. A smaller model makes 400, whose outputs keep the API
    # server so busy on two shared cores that a page takes seconds.
    "small": Size(512, 8),
    # For what does not depend on speed.
    "least": Size(64, 2),
    # A prompt of 8,000 tokens takes about 50 s on one core.
    "slow": Size(1024, 16),
}


def write(folder: pathlib.Path, size: Size, *, template: bool = True) -> pathlib.Path:
    """Write the model of this size to `folder` (made where missing) and return the folder.

    Without `template` it has none for chats, as base models have none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = _byte_alphabet()
    files = {
        "config.json": _config(size, vocabulary=len(alphabet) + len(SPECIAL)),
        "generation_config.json": {"bos_token_id": len(alphabet), "eos_token_id": len(alphabet) + 1},
        "tokenizer.json": _tokenizer(alphabet),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
            "pad_token": SPECIAL[4],
            "model_max_length": CONTEXT,
            **({"chat_template": TEMPLATE} if template else {}),
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder


def _byte_alphabet() -> list[str]:
    """The 256 printable characters by which byte-level tokenizers write bytes, as GPT-2 defined them.

    Printable Latin-1 stands for itself; every other byte takes the next character from U+0100 on.
    """
    kept = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    moved = (byte for byte in range(256) if byte not in kept)
    return sorted([*map(chr, kept), *(chr(256 + place) for place, _ in enumerate(moved))])


def _tokenizer(alphabet: list[str]) -> dict[str, object]:
    """A tokenizer of single bytes: byte-pair encoding without any pair."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": len(alphabet) + place, "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for place, token in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(alphabet)},
            "merges": [],
        },
    }


def _config(size: Size, vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": size.hidden * 4,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.hidden // HEAD,
        "num_key_value_heads": size.hidden // HEAD // 2,
        "head_dim": HEAD,
        "vocab_size": -(-vocabulary // 64) * 64,  # rounded up, as the kernels like it
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": 256,
        "eos_token_id": 257,
        "tie_word_embeddings": False,
    }
