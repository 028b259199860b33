"""The student before training: a backbone in fp32, a pooling, and modules that lead into the teacher's space.

With `student.layers: 0` a table of token vectors (students/static.py) has the place of backbone and pooling. A student
of a static model goes on with that model's table.

Every student is backbone -> pooling -> linear layer without bias to the teacher's dim (if the dims differ) ->
normalisation (if the teacher normalises): stock modules that load everywhere. A student of the teacher's own layers has
the teacher's modules in place of that linear layer (students/after_pooling.py); that of another model has the layer
also where the dims are equal. A recipe may put a mixture of experts after the pooling, the one module of ours.

Pooling, length, attention mask and tokenizer are those of the student's model, unless the recipe states others. Prompts
are the teacher's: student and teacher are trained on the same input. What else the model has is named in the plan.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, StaticEmbedding, Transformer
from sentence_transformers.util import is_sentence_transformer_model
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from distilvec.config.presets import PRESETS, find_preset
from distilvec.config.schema import Role
from distilvec.config.student import StudentSection
from distilvec.core.errors import DistilvecError, about, nearest
from distilvec.core.info import UNLIMITED
from distilvec.core.info import TeacherInfo as TeacherInfo
from distilvec.core.model_name import ModelName
from distilvec.core.objective import Projection
from distilvec.models.adapters import merge_adapters
from distilvec.models.checks import refuse_several_parts
from distilvec.models.experts import Experts
from distilvec.models.load import (
    hub_name,
    load_backbone,
    load_tokenizer,
    resolve_model,
    role_prompts,
    tokenizer_file,
    tokenizer_notes,
)
from distilvec.models.parts import is_static, lengthen, position_limit, stated_positions
from distilvec.models.tokenizers import give_padding, notes_on_file
from distilvec.students.after_pooling import has_own_modules, kept_modules, why_not_kept, width_behind
from distilvec.students.factorize import factorize
from distilvec.students.layers import choose_layers, cut_layers, rebuild, reinitialize_layers
from distilvec.students.narrow import narrow

ROLES: tuple[Role, ...] = ("query", "document")
POOLINGS = ("mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean")  # a vector as wide as the states
# settings of transformers 4 that transformers 5 still takes, though its configurations no longer list them
_ROPE = {"rope_theta", "rope_scaling", "rope_local_base_freq", "global_rope_theta", "local_rope_theta"}
EARLIER = {*_ROPE, "global_attn_every_n_layers", "sliding_window_pattern", "torch_dtype", "architectures"}


def build_student(
    section: StudentSection,
    teacher: TeacherInfo,
    seed: int,
    compatible: bool = True,
    vocabulary: PreTrainedTokenizerBase | None = None,
    texts: Sequence[str] = (),
) -> SentenceTransformer:
    """The untrained student, in fp32 on the CPU, with its own tokenizer and the teacher's prompts.

    In the teacher's space it states the teacher's similarity, in a space of its own the cosine.

    Weights that do not come from a checkpoint (a fresh backbone, fresh layers, a new linear layer: torch's
    initialisation) are drawn from `seed`; torch's global generator stays as it was. A student that is not `compatible`
    has a space of its own, and no linear layer to the teacher's. `vocabulary` is the tokenizer of the recipe's
    `student.vocabulary`; the embedding table is composed for it, or drawn for it with a fresh backbone.
    A factorized table (`student.embedding`) is fitted to `texts`, without any to every token once; so are narrower
    feed-forward layers (`student.intermediate_size`), without any by the size of their weights.
    """
    return build_with_notes(section, teacher, seed, compatible, vocabulary, texts)[0]


def build_with_notes(
    section: StudentSection,
    teacher: TeacherInfo,
    seed: int,
    compatible: bool = True,
    vocabulary: PreTrainedTokenizerBase | None = None,
    texts: Sequence[str] = (),
) -> tuple[SentenceTransformer, tuple[str, ...]]:
    """The untrained student of `build_student`, and what it does not take over from its model (`student_notes`)."""
    notes: tuple[str, ...] = ()
    own_modules: list[Any] | None = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if section.config is not None:
            source = StudentSource("the fresh student", [fresh_transformer(section, vocabulary)], {})
            file = tokenizer_file(ModelName(section.tokenizer, section.revision)) if section.tokenizer else None
            notes = notes_on_file(source.modules[0], file) if file is not None and vocabulary is None else ()
        else:
            source = load_source(section, teacher)
            own_modules = own_modules_of(section, source, teacher, compatible)
            notes = student_notes(section, source, teacher, own_modules is not None)
        transformer = source.modules[0]
        if not source.is_static:
            _add_missing_rows(transformer)
        if vocabulary is not None and section.vocabulary is not None and section.config is None:
            from distilvec.vocabulary.transplant import give_tokenizer

            give_tokenizer(transformer, vocabulary, section.vocabulary.compose, section.vocabulary.keep_norm)
        if section.attention == "bidirectional" or (section.model == "teacher" and teacher.attention):
            from distilvec.models.bidirectional import lift_causal_mask

            with about("student.attention"):
                lift_causal_mask(transformer.auto_model, source.name)
        front: list[Any]
        if source.is_static:
            table = cut_texts(source.modules[0], section.max_length, teacher.max_length)
            front = [table]
            dim = table.embedding_dim
        elif section.is_static:
            table = table_of_tokens(section, source, teacher, texts)
            front = [table]
            dim = table.embedding_dim
        else:
            transformer.model = backbone = shaped(section, transformer, teacher, texts)
            _settle_tokenizer(transformer.tokenizer, backbone)
            lengthen(transformer, choose_length(section, transformer, teacher))
            dim = states_width(backbone)
            front = [transformer, Pooling(dim, choose_pooling(section, source, teacher).mode)]
        # The order of the next lines is the order in which weights are drawn
        mixture: list[Any] = []
        if section.experts is not None:
            settings = section.experts.model_dump(exclude={"count"}, exclude_none=True)
            mixture = [Experts(dim, section.experts.count, **settings)]
        linear = own_modules or []
        if own_modules is None and needs_new_layer(section, source.modules[1:], teacher, compatible, dim):
            linear = [Dense(dim, teacher.dim, bias=False, activation_function=nn.Identity())]
        normalize = [Normalize()] if teacher.normalized else []

        # y = Norm(Linear(Mean(Transf(x))))   (REDACT, eq. 1)
        # Linear, without bias, only to another width; Norm only if the teacher's vectors have length 1; Mean is
        # the pooling, which a recipe may replace (REDACT, A.1). A static student has one table for Mean(Transf(x))
        modules = [*front, *mixture, *linear, *normalize]
    prompts = {role: "" if section.built_in_prompt else teacher.prompts.get(role, "") for role in ROLES}
    similarity = teacher.similarity if compatible else "cosine"
    student = SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name=similarity, device="cpu")
    return student.float().eval(), notes


def cut_texts(table: StaticEmbedding, stated: int | None, teachers: int) -> StaticEmbedding:
    """Let a static model's table read as many tokens as is stated, else no more than the teacher reads."""
    own = table.tokenizer.truncation
    length = stated or min(teachers, own["max_length"] if own else UNLIMITED)
    if length < UNLIMITED:
        table.tokenizer.enable_truncation(length)
    return table


def table_of_tokens(
    section: StudentSection, source: StudentSource, teacher: TeacherInfo, texts: Sequence[str]
) -> StaticEmbedding:
    """Return the token table of a static student, made of the model's own vectors of its tokens.

    A model that states no modules after its transformer has the pooling of a student with layers.
    """
    from distilvec.students.static import STATIC_RANK, static_table

    transformer = source.modules[0]
    _settle_tokenizer(transformer.tokenizer, transformer.auto_model)
    modules = list(source.modules)
    if len(modules) == 1:
        modules.append(Pooling(states_width(transformer.auto_model), choose_pooling(section, source, teacher).mode))
        if teacher.normalized:
            modules.append(Normalize())
    width = STATIC_RANK if section.embedding is None else section.embedding.rank
    dim = teacher.dim if section.model == "teacher" else None  # the teacher's vectors may be cut (truncate_dim)
    return static_table(modules, width, dim, texts, section.max_length or teacher.max_length)


def shaped(
    section: StudentSection, transformer: Transformer, teacher: TeacherInfo, texts: Sequence[str]
) -> PreTrainedModel:
    """The backbone with the recipe's layers, neurons, fresh layers, factorized table and dropout."""
    backbone = transformer.auto_model
    if section.layers is not None:
        total = backbone.config.get_text_config().num_hidden_layers
        backbone = cut_layers(backbone, choose_layers(section.layers, total))
    tokens: Sequence[Sequence[int]] = ()
    if section.reads_texts and texts:
        length = min(position_limit(backbone) or UNLIMITED, section.max_length or UNLIMITED, teacher.max_length)
        tokens = transformer.tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
    if section.intermediate_size is not None:
        backbone = narrow(backbone, section.intermediate_size, tokens)
    if section.reinitialize is not None:
        reinitialize_layers(backbone, section.reinitialize)
    if section.embedding is not None:
        backbone = factorize(backbone, section.embedding.rank, tokens)
    if isinstance(section.dropout, float | int):  # not None, nor "own"
        backbone = with_dropout(backbone, section.dropout)
    return backbone


@torch.no_grad()
def states_width(backbone: PreTrainedModel) -> int:
    """Return the width of a backbone's last states, by running it on a few tokens.

    EmbeddingGemma 2 and some OPT lead them to another width than the hidden size.
    """
    tokens = torch.ones(1, 8, dtype=torch.int64)
    width: int = backbone(input_ids=tokens, attention_mask=tokens, return_dict=True).last_hidden_state.shape[-1]
    return width


def with_projection(student: SentenceTransformer, projection: Projection) -> SentenceTransformer:
    """Return the student behind a projection: a Dense layer and Normalize after the pooling, nothing else.

    Modules are shared with the student, not copied. A projection of the embedding keeps them all.
    """
    modules = list(student)
    kinds = [type(module).__name__ for module in modules]
    if projection.pre_dense:
        end = next((kinds.index(kind) for kind in ("Dense", "Normalize") if kind in kinds), len(kinds))
        modules = modules[:end]
    if not projection.pre_dense and type(modules[-1]).__name__ != "Normalize":
        modules.append(Normalize())
    rows, columns = projection.weight.shape
    dense = Dense(columns, rows, bias=projection.bias is not None, activation_function=nn.Identity())
    parameters = {"linear.weight": projection.weight.detach()}
    if projection.bias is not None:
        parameters["linear.bias"] = projection.bias.detach()
    dense.load_state_dict(parameters)
    projected = SentenceTransformer(
        modules=[*modules, dense, Normalize()], prompts=dict(student.prompts), similarity_fn_name="cosine", device="cpu"
    )
    return projected.eval()


@dataclass(frozen=True)
class StudentSource:
    """The model that a student comes from: its modules, its prompts by role, and notes on how it is read.

    The first module is a transformer, or the token table of a static model. A plain Hugging Face model is its
    transformer alone.
    """

    name: str
    modules: list[Any]
    prompts: dict[Role, str]
    notes: tuple[str, ...] = ()

    @property
    def is_static(self) -> bool:
        """Whether the model is a token table, which its student goes on with."""
        return isinstance(self.modules[0], StaticEmbedding)

    @property
    def pooling(self) -> str | None:
        """The model's pooling of tokens, such as "cls", or "mean+max"; None if it states none."""
        for module in self.modules:
            if type(module).__name__ == "Pooling":
                modes = module.pooling_mode
                return modes if isinstance(modes, str) else "+".join(modes)
        return None


@dataclass(frozen=True)
class PoolingChoice:
    """The pooling of a student, and where it comes from, in words. `replaced`: the model states another one."""

    mode: str
    origin: str
    replaced: bool = False


def source_model(section: StudentSection, teacher: TeacherInfo) -> ModelName | None:
    """Return the model that a student is made from; of a fresh one that of its tokenizer; None without one."""
    name, revision = section.model or section.tokenizer, section.revision
    if section.model == "teacher":
        name, revision = teacher.model, section.revision or teacher.revision
    return None if name is None else ModelName(name, revision, section.trust_remote_code)


def required_source(section: StudentSection, teacher: TeacherInfo) -> ModelName:
    """Return the model that a student is made from. DistilvecError where it is the teacher's, which is no model."""
    source = source_model(section, teacher)
    if source is None:
        problem = "is 'teacher', but the teacher is a table of vectors or an API."
        raise DistilvecError(problem, "Name a model.", key="student.model")
    return source


def load_source(section: StudentSection, teacher: TeacherInfo) -> StudentSource:
    """Load the model of `student.model`, in fp32: a SentenceTransformer, or a plain Hugging Face model."""
    source = required_source(section, teacher)
    with about("student.model", source.name):
        model = load_backbone(source, model_kwargs={"dtype": torch.float32})
    if is_static(model):
        return StudentSource(source.name, list(model), role_prompts(model.prompts))
    if not isinstance(getattr(model[0], "auto_model", None), PreTrainedModel):
        raise DistilvecError(
            f"{source} begins with a {type(model[0]).__name__} module; expected a transformer.",
            "Take a SentenceTransformer or Hugging Face encoder with a transformer backbone.",
            key="student.model",
        )
    with about("student.model"):
        refuse_several_parts(model[0].auto_model, source.name)
    if section.model == "teacher":
        with about("teacher.adapters"):
            merge_adapters(model[0].auto_model, teacher.adapters or ())
    has_modules = is_sentence_transformer_model(hub_name(source).name, revision=source.revision)
    modules = list(model) if has_modules else [model[0]]
    notes = () if section.model == "teacher" else tokenizer_notes(source, model)  # the teacher's are with the teacher
    notes = tuple(f"{source.name}: {note}" for note in notes)
    return StudentSource(source.name, modules, role_prompts(model.prompts), notes)


def choose_pooling(section: StudentSection, source: StudentSource, teacher: TeacherInfo) -> PoolingChoice:
    """The student's pooling: the recipe's, else that of its model, else the mean.

    A plain model that is the teacher's, or that has published settings, has their pooling. Poolings side by side, such
    as "mean+max", give vectors larger than the hidden states, which methods and heads do not expect.
    """
    if section.config is not None:
        return PoolingChoice(section.pooling or "mean", "student.pooling" if section.pooling else "of a fresh student")
    source_pooling = source.pooling
    origin = f"as {source.name} states it"
    if source_pooling is None and len(source.modules) == 1:
        preset = PRESETS.get(find_preset(None, source.name) or "")
        if teacher.model is not None and resolve_model(source.name) == teacher.model:
            source_pooling = teacher.pooling
            origin = "the teacher's"
        elif preset is not None and preset.pooling is not None:
            source_pooling = preset.pooling
            origin = f"as published for {source.name}"
    if section.pooling is not None:
        if source_pooling in (None, section.pooling):
            return PoolingChoice(section.pooling, "student.pooling")
        return PoolingChoice(section.pooling, f"student.pooling instead of {source_pooling}", replaced=True)
    if source_pooling is None:
        return PoolingChoice("mean", f"{source.name} states none", replaced=True)
    if source_pooling not in POOLINGS:
        return PoolingChoice(
            "mean", f"a student cannot have {source_pooling}, as {source.name} states it", replaced=True
        )
    return PoolingChoice(source_pooling, origin)


def own_modules_of(
    section: StudentSection, source: StudentSource, teacher: TeacherInfo, compatible: bool
) -> list[Any] | None:
    """Return the modules of its model that a student has after its pooling, with their weights; None if it has none.

    By default those of the teacher, in a student of its layers that is trained into its space.
    """
    is_asked_for = section.dense in ("keep", "fold")
    is_default = section.dense == "auto" and section.model == "teacher" and compatible and not section.is_static
    if not (is_asked_for or is_default):
        return None
    dim = teacher.dim if compatible else None
    if source.is_static:
        later_modules = source.modules  # its table has the place of a pooling
        reason = None if width_behind(later_modules) >= (dim or 0) else f"they give fewer dimensions than {dim}"
    elif section.is_static:
        later_modules = source.modules[1:]
        reason = "a static student's table (layers: 0) is made of the whole model"
    else:
        later_modules = source.modules[1:]
        reason = why_not_kept(later_modules, section.pooling, dim)
    if reason is None:
        return kept_modules(later_modules, dim, fold=section.dense != "keep")
    if is_asked_for:
        raise DistilvecError(
            f"'{section.dense}' cannot keep the modules after the pooling of {source.name}: {reason}.",
            "Set student.dense to auto, or name another model.",
            key="student.dense",
        )
    return None


def needs_new_layer(
    section: StudentSection, later_modules: Sequence[Any], teacher: TeacherInfo, compatible: bool, dim: int
) -> bool:
    """Whether a student whose pooling gives `dim` dimensions gets a new linear layer, to be fitted to the teacher.

    By default where the dims differ, and in place of modules of the teacher that cannot be kept.
    """
    if section.dense != "auto" or not compatible:
        return section.dense == "always"
    if dim != teacher.dim:
        return True
    return section.model == "teacher" and not section.is_static and has_own_modules(later_modules)


def student_notes(
    section: StudentSection, source: StudentSource, teacher: TeacherInfo, keeps_modules: bool = False
) -> tuple[str, ...]:
    """List what a student does not take over from its model: pooling, modules after it, prompts."""
    notes = list(source.notes)
    pooling = choose_pooling(section, source, teacher)
    if pooling.replaced and not section.is_static:
        notes.append(f"pooling {pooling.mode}: {pooling.origin}")
    stock = ("Pooling", "Normalize")
    kinds = [type(module).__name__ for module in source.modules[1:] if type(module).__name__ not in stock]
    is_made_of_all = section.is_static and not source.is_static  # the table of a static student
    if kinds and not keeps_modules and not is_made_of_all:
        notes.append(
            f"without {', '.join(kinds)} of {source.name} (student.dense=keep keeps modules after the pooling)"
        )
    if getattr(source.modules[0].tokenizer, "truncation_side", "right") == "left":
        notes.append(f"long texts lose their end, not their beginning as those of {source.name}")
    prompts = {role: prompt for role, prompt in source.prompts.items() if prompt != teacher.prompts.get(role, "")}
    if section.model != "teacher" and section.built_in_prompt is None and any(prompts.values()):
        listed = ", ".join(f"{role} {prompt!r}" for role, prompt in prompts.items())
        notes.append(f"prompts are the teacher's, not those of {source.name} ({listed})")
    return tuple(notes)


def fresh_transformer(section: StudentSection, vocabulary: PreTrainedTokenizerBase | None = None) -> Transformer:
    """A backbone from `section.config`, with random weights from torch's generator, and the recipe's tokenizer.

    `vocabulary` is the one that `student.vocabulary` made from it.
    """
    assert section.config is not None and section.tokenizer is not None
    common: dict[str, Any] = {"trust_remote_code": section.trust_remote_code}  # a tokenizer with code of its own
    with about("student.tokenizer", section.tokenizer):
        source = ModelName(section.tokenizer, section.revision, section.trust_remote_code)
        tokenizer = vocabulary or load_tokenizer(source)
    config = fresh_config(section.config, tokenizer)
    with about("student.config", type(config).__name__):
        backbone = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
    with tempfile.TemporaryDirectory() as folder:
        backbone.config.architectures = [type(backbone).__name__]
        backbone.config.save_pretrained(folder)
        save_model(backbone, f"{folder}/model.safetensors", {"format": "pt"})  # save_pretrained: in one process only
        tokenizer.save_pretrained(folder)
        kwargs = {"model_kwargs": {"dtype": torch.float32, **common}, "config_kwargs": dict(common)}
        return Transformer(folder, processor_kwargs=dict(common), **kwargs)


def fresh_config(settings: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """A configuration from a recipe's `student.config`; vocabulary and special tokens are the tokenizer's."""
    kind = settings.get("model_type")
    try:
        defaults = AutoConfig.for_model(str(kind))
    except ValueError as error:
        raise DistilvecError(
            f"found {kind!r}; expected one such as modernbert.", key="student.config.model_type"
        ) from error
    names = {*defaults.to_dict(), *defaults.attribute_map, *EARLIER}
    for name in settings:
        if name not in names:
            raise DistilvecError(
                f"{kind} has no such setting{nearest(name, names) or '.'}", key=f"student.config.{name}"
            )
    special = {f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep")} & names
    of_tokenizer = {"vocab_size": len(tokenizer)}
    of_tokenizer |= {name: getattr(tokenizer, name) for name in special}
    with about("student.config", str(kind)):
        return AutoConfig.for_model(**{**of_tokenizer, **settings})


def with_dropout(backbone: PreTrainedModel, rate: float) -> PreTrainedModel:
    """The backbone with every dropout rate of its configuration, and so of its modules, set to `rate`."""
    config = copy.deepcopy(backbone.config)
    for part in (config, config.get_text_config()):
        for name in dropout_rates(part):
            setattr(part, name, rate)
    return rebuild(backbone, config, backbone.state_dict())


def dropout_rates(config: PretrainedConfig) -> dict[str, float]:
    """A configuration's dropout rates by name."""
    numbers = {name: value for name, value in vars(config).items() if type(value) in (int, float)}
    return {name: value for name, value in numbers.items() if "dropout" in name or "pdrop" in name}


def choose_length(section: StudentSection, transformer: Transformer, teacher: TeacherInfo) -> int:
    """The student's maximum length in tokens: as asked, else the smaller of its model's limit and the teacher's.

    The teacher's own layers have the teacher's limit, which the recipe may have raised above that of its files.
    """
    max_length = section.max_length
    positions = position_limit(transformer.auto_model)
    if max_length is not None:
        if positions is not None and max_length > positions:
            raise DistilvecError(
                f"found {max_length}; the student has {positions} positions.", "Give fewer.", key="student.max_length"
            )
        return max_length
    if section.model == "teacher" and teacher.max_length < UNLIMITED:
        return min(teacher.max_length, positions or UNLIMITED)
    config = transformer.auto_model.config.get_text_config()
    limits = [teacher.max_length]
    for limit in (
        transformer.tokenizer.model_max_length,
        stated_positions(config),
        positions,
    ):
        if limit is not None and 0 < limit < UNLIMITED:
            limits.append(limit)
    return int(min(limits))


def _settle_tokenizer(tokenizer: PreTrainedTokenizerBase, backbone: PreTrainedModel) -> None:
    """Pad and truncate on the right, have a padding token, and fit the backbone's vocabulary."""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    give_padding(tokenizer)
    if tokenizer.pad_token is None:
        raise DistilvecError(
            "the student's tokenizer has no padding token, nor an end or unknown token.",
            "Set its pad_token and save it.",
            key="student.tokenizer",
        )
    rows = backbone.get_input_embeddings().num_embeddings
    if _beyond(tokenizer, rows):
        raise DistilvecError(
            f"the tokenizer has {len(tokenizer)} tokens, the embedding table {rows} rows.",
            "Take the tokenizer that belongs to the model, or set vocab_size in student.config.",
            key="student.tokenizer",
        )


def _add_missing_rows(transformer: Transformer) -> None:
    """Give zeros to added tokens that the table has no row for, such as Gemma's mark of an image: a text may hold one.

    Other tokens without a row mean that tokenizer and model do not belong together, which `_settle_tokenizer` refuses.
    """
    tokenizer, backbone = transformer.tokenizer, transformer.auto_model
    table = backbone.get_input_embeddings()
    beyond = _beyond(tokenizer, table.num_embeddings)
    if not beyond or not beyond <= tokenizer.added_tokens_decoder.keys():
        return

    from distilvec.vocabulary.transplant import put_tables

    size = max(beyond) + 1
    zeros = table.weight.new_zeros(size - table.num_embeddings, table.embedding_dim)
    put_tables(backbone, [(table.weight, torch.cat([table.weight.detach(), zeros]))])


def _beyond(tokenizer: PreTrainedTokenizerBase, rows: int) -> set[int]:
    """Return the ids of a tokenizer that a table of so many rows lacks."""
    return {number for number in tokenizer.get_vocab().values() if number >= rows}
