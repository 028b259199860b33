"""The student before training: a backbone in fp32, a pooling, and what leads into the teacher's space.

Whatever the teacher does, the student is backbone -> pooling -> linear layer without bias to the teacher's width (where
the widths differ) -> normalisation (where the teacher normalises): stock modules that load everywhere. A recipe may put
a mixture of experts behind the pooling, the one module that is our own, or keep pooling and linear layers of its model.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from distilvec.config.schema import Role, StudentSection
from distilvec.core.errors import DistilvecError, first_line, nearest
from distilvec.core.info import UNLIMITED
from distilvec.models.experts import Experts
from distilvec.models.limits import lengthen, position_limit
from distilvec.models.load import load_backbone, load_tokenizer
from distilvec.students.dense import kept_modules
from distilvec.students.layers import choose_layers, cut_layers, rebuild, reinitialize_layers
from distilvec.vocabulary.transplant import give_tokenizer

ROLES: tuple[Role, ...] = ("query", "document")
# settings of transformers 4 that transformers 5 still takes, though its configurations no longer list them
EARLIER = {
    "rope_theta",
    "rope_scaling",
    "rope_local_base_freq",
    "global_rope_theta",
    "local_rope_theta",
    "global_attn_every_n_layers",
}
EARLIER |= {"sliding_window_pattern", "torch_dtype", "architectures"}


@dataclass(frozen=True)
class TeacherInfo:
    """What a student must know of its teacher: the space it lives in, and where its backbone is."""

    width: int
    normalized: bool
    max_length: int
    prompts: dict[Role, str] = field(default_factory=dict)
    model: str | None = None
    name: str = "teacher"
    revision: str | None = None
    hidden_width: int | None = None  # this and the rest: None where the teacher is not a transformer at hand
    layers: int | None = None
    heads: int | None = None
    tokenizer: str | None = None  # its hash
    special: tuple[int, int] | None = None  # special tokens that begin and that end every text
    pre_dense_width: int | None = None  # of its vector before its first Dense layer, where it has one


def build_student(
    section: StudentSection,
    teacher: TeacherInfo,
    seed: int,
    compatible: bool = True,
    vocabulary: PreTrainedTokenizerBase | None = None,
) -> SentenceTransformer:
    """The untrained student, in fp32 on the CPU.

    Weights that do not come from a checkpoint (a fresh backbone, fresh layers, the linear layer: torch's own initialisation)
    are drawn from `seed`; torch's global generator is left as it was. The student has its own tokenizer, the teacher's
    prompts and cosine similarity. One that is not `compatible` has a space of its own and so no linear layer to the teacher's.
    `vocabulary` is the tokenizer that the recipe's `student.vocabulary` asks for; the backbone's embedding table is composed anew for it.
    Errors: DistilvecError for a model that cannot be found or read, layers, linear layers to keep or a length it does not
    have, a tokenizer that does not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer, *others = (
            [fresh_transformer(section)] if section.config is not None else load_modules(section, teacher)
        )
        if vocabulary is not None and section.vocabulary is not None:
            give_tokenizer(transformer, vocabulary, section.vocabulary.compose, section.vocabulary.keep_norm)
        backbone = transformer.auto_model
        if section.layers is not None:
            total = backbone.config.get_text_config().num_hidden_layers
            backbone = cut_layers(backbone, choose_layers(section.layers, total))
        if section.reinitialize is not None:
            reinitialize_layers(backbone, section.reinitialize)
        if section.dropout is not None:
            backbone = with_dropout(backbone, section.dropout)
        transformer.model = backbone
        _settle_tokenizer(transformer.tokenizer, backbone)
        lengthen(transformer, choose_length(section.max_length, transformer, teacher))
        width = backbone.config.get_text_config().hidden_size
        kept = (
            kept_modules(section, others, width, teacher.width if compatible else None)
            if section.dense == "keep"
            else []
        )
        modules = [transformer, kept[0] if kept else Pooling(width, section.pooling)]
        if section.experts is not None:
            modules.append(Experts(width, section.experts.count, **section.experts.model_dump(exclude={"count"})))
        if kept:
            modules += kept[1:]
        elif section.dense == "always" or (compatible and width != teacher.width):
            modules.append(Dense(width, teacher.width, bias=False, activation_function=nn.Identity()))
        if teacher.normalized:
            modules.append(Normalize())
    prompts = {role: teacher.prompts.get(role, "") for role in ROLES}
    student = SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name="cosine", device="cpu")
    return student.float().eval()


def load_modules(section: StudentSection, teacher: TeacherInfo) -> list[Any]:
    """The modules of a SentenceTransformer folder or id, or of a plain Hugging Face model as one, a transformer first; fp32."""
    name, revision = section.model, section.revision
    if name == "teacher":
        name, revision = teacher.model, revision or teacher.revision
        if name is None:
            raise DistilvecError(
                "[student.model] is 'teacher', but the teacher is a table of vectors without a model; "
                "name a model here, or give teacher.model."
            )
    assert name is not None
    trusted = section.trust_remote_code
    model = load_backbone(
        name, "student.model", revision=revision, trust_remote_code=trusted, model_kwargs={"dtype": torch.float32}
    )
    first = model[0]
    if not isinstance(getattr(first, "auto_model", None), PreTrainedModel):
        raise DistilvecError(
            f"[student.model] {name} begins with a {type(first).__name__} module; expected a transformer. "
            "Take a SentenceTransformer or Hugging Face encoder with a transformer backbone."
        )
    return list(model)


def fresh_transformer(section: StudentSection) -> Transformer:
    """A backbone from `section.config` with random weights from torch's current generator, and the recipe's tokenizer."""
    assert section.config is not None and section.tokenizer is not None
    trusted = section.trust_remote_code
    tokenizer = load_tokenizer(
        section.tokenizer, "student.tokenizer", revision=section.revision, trust_remote_code=trusted
    )
    config = fresh_config(section.config, tokenizer)
    try:
        backbone = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except (ValueError, TypeError, KeyError, RuntimeError, ZeroDivisionError) as error:
        raise DistilvecError(
            f"[student.config] no model can be built from it: {first_line(error)}. Look at the sizes in it."
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        backbone.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        common = {"trust_remote_code": trusted}  # a tokenizer with code of its own
        return Transformer(
            folder,
            model_kwargs={"dtype": torch.float32, **common},
            processor_kwargs=dict(common),
            config_kwargs=dict(common),
        )


def fresh_config(settings: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """A transformers configuration from a recipe's `student.config`; vocabulary and special tokens follow the tokenizer."""
    kind = settings.get("model_type")
    try:
        known = AutoConfig.for_model(str(kind))
    except ValueError as error:
        raise DistilvecError(
            f"[student.config.model_type] found {kind!r}; expected an architecture that transformers knows, such as bert or modernbert."
        ) from error
    names = {*known.to_dict(), *known.attribute_map, *EARLIER}
    for name in settings:
        if name not in names:
            raise DistilvecError(f"[student.config.{name}] {kind} has no such setting{nearest(name, names) or '.'}")
    own = {"vocab_size": len(tokenizer), **_special_tokens(tokenizer, names)}
    try:
        config = AutoConfig.for_model(**{**own, **settings})
    except (TypeError, ValueError) as error:
        raise DistilvecError(
            f"[student.config] transformers refuses it: {first_line(error)}. Look at the settings in it."
        ) from error
    return config


def with_dropout(backbone: PreTrainedModel, rate: float) -> PreTrainedModel:
    """The backbone with every dropout rate set: in its configuration, and so in every module built from it."""
    config = copy.deepcopy(backbone.config)
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for name, value in list(vars(part).items()):
            if (
                ("dropout" in name or "pdrop" in name)
                and isinstance(value, (int, float))
                and not isinstance(value, bool)
            ):
                setattr(part, name, rate)
    return rebuild(backbone, config, backbone.state_dict())


def choose_length(asked: int | None, transformer: Transformer, teacher: TeacherInfo) -> int:
    """The student's maximum length in tokens: as asked, else the smaller of its own limit and the teacher's.

    Errors: DistilvecError if more is asked for than the model has positions (a limit only for learned positions;
    rotary and relative ones go on beyond it).
    """
    positions = position_limit(transformer.auto_model)
    if asked is not None:
        if positions is not None and asked > positions:
            raise DistilvecError(
                f"[student.max_length] found {asked}; the student has positions for {positions} tokens. Give at most that."
            )
        return asked
    config = transformer.auto_model.config.get_text_config()
    stated = [transformer.tokenizer.model_max_length, getattr(config, "max_position_embeddings", None), positions]
    return int(min([teacher.max_length, *(limit for limit in stated if limit is not None and 0 < limit < UNLIMITED)]))


def _settle_tokenizer(tokenizer: PreTrainedTokenizerBase, backbone: PreTrainedModel) -> None:
    """Pad and truncate on the right, have a padding token, and fit the backbone's vocabulary."""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        stand_in = tokenizer.eos_token or tokenizer.unk_token
        if stand_in is None:
            raise DistilvecError(
                "[student.tokenizer] the student's tokenizer has no padding token, nor an end or unknown token to use as one. "
                "Set its pad_token and save it."
            )
        tokenizer.pad_token = stand_in
    rows = backbone.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise DistilvecError(
            f"[student.tokenizer] the tokenizer has {len(tokenizer)} tokens, the student's embedding table {rows} rows; "
            "take the tokenizer that belongs to the model, or set vocab_size in student.config."
        )


def _special_tokens(tokenizer: PreTrainedTokenizerBase, names: set[str]) -> dict[str, int | None]:
    roles = [f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep")]
    return {role: getattr(tokenizer, role) for role in roles if role in names}
