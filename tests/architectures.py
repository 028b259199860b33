"""Tiny randomly initialised models with tokenizers of their own, saved as plain Hugging Face folders.

One function per architecture: `bert(folder)`, ...; `ARCHITECTURES` maps names to them. Widths are 32, four layers (six
for ModernBERT and Gemma 3, so that their layer patterns show), vocabularies a few hundred tokens, so making one takes
well under a second. Weights are drawn wide (standard deviation 0.3), so that a skipped or swapped layer changes the
vectors by far more than rounding does.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast, T5EncoderModel

TEXTS = [
    "A student learns to place a text where its teacher places it.",
    "The quick brown fox jumps over the lazy dog, again and again.",
    "Queries are short.",
    "Documents are longer: they have several sentences. Each sentence says one thing, and the last one ends the text.",
    "Grüße aus Köln, çok güzel bir gün, и ещё немного текста.",
    "return the sorted list of rows, or raise ValueError if it is empty",
]
WIDTH = 32
SIZES = {"hidden_size": WIDTH, "num_attention_heads": 4, "intermediate_size": 64, "initializer_range": 0.3}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}


_KEPT = tempfile.TemporaryDirectory(prefix="distilvec-architectures-")


def kept(make: Callable[..., Path]) -> Callable[..., Path]:
    """Make each model once in a process; a folder gets a copy."""
    known: dict[str, Path] = {}

    @functools.wraps(make)
    def copied(folder: Path, seed: int = 0, **changes: Any) -> Path:
        key = json.dumps([seed, changes], sort_keys=True)
        if key not in known:
            known[key] = make(Path(_KEPT.name) / f"{make.__name__}-{len(known)}", seed, **changes)
        return Path(shutil.copytree(known[key], folder, dirs_exist_ok=True))

    return copied


@kept
def bert(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """BERT: WordPiece, absolute positions (128), token types."""
    tokenizer = wordpiece({"model_max_length": 128})
    config = {**SIZES, "model_type": "bert", "num_hidden_layers": 4, "max_position_embeddings": 128, **changes}
    return save(folder, tokenizer, config, seed)


@kept
def xlm_roberta(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """XLM-R: Unigram with metaspace, absolute positions that start at padding_idx + 1 (so 128 of 130)."""
    config = {
        **SIZES,
        "model_type": "xlm-roberta",
        "num_hidden_layers": 4,
        "max_position_embeddings": 130,
        "type_vocab_size": 1,
    }
    return save(folder, unigram(), {**config, **changes}, seed)


@kept
def roberta(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """RoBERTa: byte-level BPE, positions as XLM-R."""
    tokenizer = byte_level(
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "<s> $A </s>", bos="<s>", eos="</s>", pad="<pad>"
    )
    config = {
        **SIZES,
        "model_type": "roberta",
        "num_hidden_layers": 4,
        "max_position_embeddings": 130,
        "type_vocab_size": 1,
    }
    return save(folder, tokenizer, {**config, **changes}, seed)


@kept
def longformer(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Longformer: as RoBERTa, with a window of attention for each layer."""
    return roberta(folder, seed, model_type="longformer", attention_window=[8, 8, 16, 16], **changes)


@kept
def gpt2(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """GPT-2: byte-level BPE, causal, a table of 128 positions."""
    tokenizer = byte_level(["<|endoftext|>"], "$A", eos="<|endoftext|>", pad="<|endoftext|>")
    config = {"model_type": "gpt2", "n_embd": WIDTH, "n_head": 4, "n_layer": 4, "n_positions": 128}
    return save(folder, tokenizer, {**config, "initializer_range": 0.3, **changes}, seed)


@kept
def gpt_neo(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """GPT-Neo: as GPT-2, with global and local attention in turn."""
    sizes = {"hidden_size": WIDTH, "num_heads": 4, "num_layers": 4, "window_size": 8, "max_position_embeddings": 128}
    kinds = [[["global", "local"], 2]]
    return gpt2(folder, seed, model_type="gpt_neo", **sizes, attention_types=kinds, **changes)


@kept
def opt(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """OPT: byte-level BPE, causal, a table of 130 positions, of which a text has those from 2 on."""
    sizes = {"hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "num_attention_heads": 4, "ffn_dim": 64}
    config = {"model_type": "opt", **sizes, "num_hidden_layers": 4, "max_position_embeddings": 128, "init_std": 0.3}
    tokenizer = byte_level(["<s>", "<pad>", "</s>", "<unk>"], "</s> $A", bos="<s>", eos="</s>", pad="<pad>")
    return save(folder, tokenizer, {**config, **changes}, seed)


@kept
def xlnet(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """XLNet: Unigram, relative positions without a limit."""
    config = {"model_type": "xlnet", "d_model": WIDTH, "n_head": 4, "n_layer": 4, "d_inner": 64}
    return save(folder, unigram(), {**config, "initializer_range": 0.3, **changes}, seed)


@kept
def distilbert(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """DistilBERT: WordPiece; its config spells the sizes its own way."""
    config = {
        "model_type": "distilbert",
        "dim": WIDTH,
        "n_heads": 4,
        "hidden_dim": 64,
        "n_layers": 4,
        "max_position_embeddings": 128,
    }
    return save(
        folder,
        wordpiece({"model_input_names": ["input_ids", "attention_mask"]}),
        {**config, "initializer_range": 0.3, **changes},
        seed,
    )


@kept
def mpnet(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """MPNet: absolute positions and one relative attention bias shared by all layers."""
    config = {**SIZES, "model_type": "mpnet", "num_hidden_layers": 4, "max_position_embeddings": 130}
    return save(folder, unigram(), {**config, **changes}, seed)


@kept
def modernbert(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """ModernBERT: byte-level BPE, global attention in every third layer and a window of 8 tokens in the others, RoPE."""  # noqa: E501
    tokenizer = byte_level(
        ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"], "[CLS] $A [SEP]", bos="[CLS]", eos="[SEP]", pad="[PAD]"
    )
    config = {
        **SIZES,
        "model_type": "modernbert",
        "num_hidden_layers": 6,
        "local_attention": 8,
        "max_position_embeddings": 128,
    }
    return save(folder, tokenizer, {**config, "reference_compile": False, **changes}, seed)


@kept
def gemma3(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Gemma 3 (text, as EmbeddingGemma): sliding and full attention mixed, both directions, RoPE with two bases."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    config = {**DECODER, "model_type": "gemma3_text", "num_hidden_layers": 6, "layer_types": kinds, "sliding_window": 8}
    tokenizer = metaspace("<bos> $A <eos>", ["<pad>", "<eos>", "<bos>", "<unk>"])
    return save(
        folder, tokenizer, {**config, "query_pre_attn_scalar": 8, "use_bidirectional_attention": True, **changes}, seed
    )


@kept
def embedding_gemma2(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """EmbeddingGemma 2 (text): inputs for every layer, wider layers with full attention, 48 dimensions behind them."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    of_full = {"head_dim": 16, "num_key_value_heads": 1}
    config = {**DECODER, "num_hidden_layers": 6, "layer_types": kinds, "sliding_window": 4, "embedding_dim": 48}
    own = {"model_type": "embedding_gemma2_text", "hidden_size_per_layer_input": 8}
    tokenizer = metaspace("<bos> $A <eos>", ["<pad>", "<eos>", "<bos>", "<unk>"])
    by_layer = {number: of_full for number, kind in enumerate(kinds) if kind == "full_attention"}
    return save(folder, tokenizer, {**config, **own, "per_layer_config": by_layer, **changes}, seed)


@kept
def gemma3n(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Gemma 3n (text): a table and a projection with a block for every layer, lists of sizes by layer."""
    sizes = {"hidden_size_per_layer_input": 8, "laurel_rank": 4, "sliding_window": 4, "num_kv_shared_layers": 0}
    by_layer = {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0],
        "intermediate_size": [64, 64, 48, 48],
    }
    tokenizer = metaspace("<bos> $A <eos>", ["<pad>", "<eos>", "<bos>", "<unk>"])
    config = {**DECODER, **sizes, **by_layer, "model_type": "gemma3n_text", "num_hidden_layers": 4}
    return save(folder, tokenizer, {**config, "vocab_size_per_layer_input": len(tokenizer), **changes}, seed)


@kept
def esm(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """ESM: a regression on the attention maps of all layers, with a column for every layer's heads."""
    config = {**SIZES, "model_type": "esm", "num_hidden_layers": 4, "position_embedding_type": "rotary"}
    tokenizer = metaspace("<bos> $A <eos>", ["<pad>", "<eos>", "<bos>", "<unk>"])
    return save(folder, tokenizer, {**config, "mask_token_id": 3, "token_dropout": False, **changes}, seed)


@kept
def qwen3(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Qwen 3: byte-level BPE, causal, left padding, one end-of-text token appended."""
    tokenizer = byte_level(["<|endoftext|>"], "$A <|endoftext|>", eos="<|endoftext|>", pad="<|endoftext|>")
    tokenizer.padding_side = "left"
    rope = {"rope_type": "default", "rope_theta": 1000.0}
    return save(
        folder,
        tokenizer,
        {**DECODER, "model_type": "qwen3", "num_hidden_layers": 4, "rope_parameters": rope, **changes},
        seed,
    )


@kept
def mistral(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Mistral: causal with a window of 8 tokens; its tokenizer has no padding token."""
    tokenizer = metaspace("<s> $A </s>", ["<unk>", "<s>", "</s>"])
    rope = {"rope_type": "default", "rope_theta": 1000.0}
    config = {**DECODER, "model_type": "mistral", "num_hidden_layers": 4, "sliding_window": 8, "rope_parameters": rope}
    return save(folder, tokenizer, {**config, **changes}, seed)


@kept
def llama(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Llama: causal, no window; its tokenizer has a padding token."""
    rope = {"rope_type": "default", "rope_theta": 1000.0}
    config = {**DECODER, "model_type": "llama", "num_hidden_layers": 4, "rope_parameters": rope}
    return save(folder, metaspace("<s> $A </s>", ["<unk>", "<s>", "</s>", "<pad>"]), {**config, **changes}, seed)


@kept
def t5(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """The encoder of a T5: Unigram with metaspace, cut at white space first, `</s>` appended; relative positions, a
    table used twice.
    """
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 4, "initializer_factor": 1.0}
    tokenizer = unigram(
        ["<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>"], "$A </s>", eos="</s>", unk="<unk>", pad="<pad>"
    )
    tokenizer.model_max_length = 512  # which its positions do not need
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    return save(folder, tokenizer, {"model_type": "t5", **sizes, **changes}, seed, T5EncoderModel._from_config)


ARCHITECTURES: dict[str, Callable[..., Path]] = {
    "bert": bert,
    "xlm_roberta": xlm_roberta,
    "roberta": roberta,
    "distilbert": distilbert,
    "mpnet": mpnet,
    "modernbert": modernbert,
    "gemma3": gemma3,
    "qwen3": qwen3,
    "mistral": mistral,
}


def sentence_transformer(folder: Path, backbone: Path, modules: str = "mean normalize", seed: int = 0) -> Path:
    """Wrap a backbone's folder as a SentenceTransformer folder; modules: a pooling, then `dense:WIDTH`, `normalize` in
    order.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(seed)
    pooling, *rest = modules.split()
    transformer = Transformer(str(backbone))
    width = transformer.get_embedding_dimension()
    stack: list[Any] = [transformer, Pooling(width, pooling)]
    for name in rest:
        if name == "normalize":
            stack.append(Normalize())
        else:
            out = int(name.removeprefix("dense:"))
            stack.append(Dense(width, out, bias=False, activation_function=torch.nn.Identity()))
            width = out
    SentenceTransformer(modules=stack, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def save(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    config: dict[str, Any],
    seed: int,
    make: Callable[[Any], Any] = AutoModel.from_config,
) -> Path:
    """Initialise a model for this tokenizer and save both as a plain Hugging Face folder."""
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    settings = AutoConfig.for_model(**{"vocab_size": len(tokenizer), **special, **config})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(settings)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    return folder


def wordpiece(changes: dict[str, Any] | None = None) -> PreTrainedTokenizerFast:
    """A lower-casing WordPiece tokenizer as BERT's."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, cutter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = [word for text in TEXTS for word, _ in cutter.pre_tokenize_str(normalizer.normalize_str(text))]
    vocabulary = {piece: number for number, piece in enumerate([*special, *pieces(words, 200 - len(special))])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, cutter, decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    inputs = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{**names, **inputs, **(changes or {})})


def pieces(words: list[str], count: int) -> list[str]:
    """Every letter at the beginning of a word and within, then the commonest longer pieces: the same in every process.

    The library's trainer breaks ties by chance, and with them the tiny models would differ from one run to the
    next.
    """
    letters = sorted({mark + letter for word in words for letter in word for mark in ("", "##")})
    found = Counter(
        ("##" if start else "") + word[start:end]
        for word in words
        for start in range(len(word))
        for end in range(start + 2, min(len(word), start + 6) + 1)
    )
    return [*letters, *sorted(found, key=lambda piece: (-found[piece], -len(piece), piece))][:count]


def unigram(
    special: Sequence[str] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), single: str = "<s> $A </s>", **roles: str
) -> PreTrainedTokenizerFast:
    """A Unigram tokenizer with metaspace, by default as XLM-R's; `roles` name the special tokens, <unk> among them:
    bos, eos, unk, ...

    The library's trainer orders equal scores at random, and the end of a score varies between runs.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    learned = json.loads(tokenizer.to_str())["model"]["vocab"]
    rounded = [(piece, round(score, 6)) for piece, score in learned]
    first, others = rounded[: len(special)], rounded[len(special) :]
    others.sort(key=lambda entry: (-entry[1], entry[0]))
    tokenizer.model = models.Unigram(first + others, first.index(("<unk>", 0.0)))
    pair = None if roles else "<s> $A </s> </s> $B </s>"
    tokenizer.post_processor = template(tokenizer, single, pair)
    xlm_roberta = {
        "bos": "<s>",
        "eos": "</s>",
        "cls": "<s>",
        "sep": "</s>",
        "unk": "<unk>",
        "pad": "<pad>",
        "mask": "<mask>",
    }
    return wrap(tokenizer, **{f"{role}_token": token for role, token in (roles or xlm_roberta).items()})


def byte_level(special: list[str], single: str, **roles: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer; `roles` name the special tokens: bos, eos, pad."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = template(tokenizer, single)
    return wrap(tokenizer, **{f"{role}_token": token for role, token in roles.items()})


def metaspace(single: str, special: list[str]) -> PreTrainedTokenizerFast:
    """A BPE tokenizer with metaspace and byte fallback off, as the SentencePiece ones of Gemma and Mistral."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = template(tokenizer, single)
    roles = {"<pad>": "pad", "<eos>": "eos", "</s>": "eos", "<bos>": "bos", "<s>": "bos", "<unk>": "unk"}
    return wrap(tokenizer, **{f"{roles[token]}_token": token for token in special})


def template(tokenizer: Tokenizer, single: str, pair: str | None = None) -> processors.TemplateProcessing:
    """A post-processor from a template such as `[CLS] $A [SEP]`."""
    words: Iterable[str] = {word.split(":")[0] for word in f"{single} {pair or ''}".split() if not word.startswith("$")}
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(word, tokenizer.token_to_id(word)) for word in words]
    )


def wrap(tokenizer: Tokenizer, **settings: Any) -> PreTrainedTokenizerFast:
    """A tokenizer as transformers holds it, without token types."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **settings
    )
