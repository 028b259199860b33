"""Settings of the student: layers, vocabulary, experts, adapters, head."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from distilvec.config.base import FolderOrId, Section, StudentModelName, Tokens, Units, VocabularySize, key, refused

Pooling = Literal["mean", "cls", "lasttoken"]


class LayersSection(Section):
    """A number of layers to keep, and the way to choose them."""

    count: int = key(..., "layers to keep", gt=0)
    choose: Literal["spread", "best"] = key(
        "best", "evenly spread, or the layers closest to the teacher before training, on a few hundred texts"
    )


class LoraSection(Section):
    """Low-rank adapters (peft) instead of the backbone's own weights; merged into them when the student is saved."""

    r: Units = key(256, "rank of the adapters")
    alpha: float = key(32, "scale of the adapters, over their rank", gt=0)
    dropout: float = key(0.1, "dropout before the adapters", ge=0, lt=1)
    targets: list[str] | None = key(None, "names of the linear layers; all of the backbone's by default")


class ExpertsSection(Section):
    """A mixture of experts on the pooled vector (DistillMoE): feed-forward networks, weighted by a gate and summed."""

    count: int = key(3, "one per facet and teacher", gt=0, le=256)
    width: Units = key(1024, "width of an expert's hidden layer")
    gate_width: Units | None = key(None, "width of the gate's hidden layer; linear by default")
    dropout: float = key(0.1, "inside an expert", ge=0, lt=1)
    residual: bool | None = key(None, "add an expert's input to its output; it starts as the input")


class HeadSection(Section):
    """The head of a labelled task: dropout and a hidden layer before its linear layer."""

    dropout: float | None = key(None, "dropout before the head, in training; 0 by default", ge=0, lt=1)
    hidden: Units | None = key(None, "size of a hidden layer with tanh; no such layer by default")
    start: Literal["random", "logistic"] = key(
        "random", "the weights before training; 'logistic' fits classes to the student's vectors by logistic regression"
    )

    @model_validator(mode="after")
    def check_start(self) -> HeadSection:
        """Refuse a regression for a head of two layers."""
        if self.start == "logistic" and self.hidden is not None:
            raise refused("start", "'logistic' fits one linear layer; leave out hidden, or start at random")
        return self


class VocabularySection(Section):
    """Another vocabulary than the backbone's own (tokenizer surgery): `tokenizer`, or one chosen on the corpus's texts.

    `trim` keeps what the texts use, or `size` of it. `hybrid` has `share` tokens of the `target` language's own, and
    fills up with those that other languages use most. `bpe`, `unigram` and `wordpiece` are trained on the texts.
    """

    kind: Literal["trim", "hybrid", "bpe", "unigram", "wordpiece"] = key(
        "trim",
        "trim: tokens that the texts use; hybrid: also new tokens of the target; others: trained on the texts",
    )
    tokenizer: FolderOrId | None = key(None, "an existing tokenizer instead: folder, id, tokenizer.json or .model")
    size: VocabularySize | None = key(
        None, "number of tokens, or as close as the texts allow; trim keeps all used tokens by default"
    )
    letters: Literal["all", "seen"] | None = key(
        None, "keep all letters of the old alphabet, or only letters of the texts; by default all, up to half the size"
    )
    target: str | None = key(None, "with hybrid: the language that gets its own tokens")
    share: VocabularySize | None = key(None, "with hybrid: the number of that language's tokens, or as its texts allow")
    compose: Literal["mean", "weighted", "first", "last"] = key("mean", "new embeddings of the old pieces' ones")
    keep_norm: bool = key(False, "bring composed embeddings to the mean norm of their pieces")

    @model_validator(mode="after")
    def check_kind(self) -> VocabularySection:
        """Refuse keys that do not belong to the kind, and a kind without what it needs."""
        hybrid = self.kind == "hybrid"
        if self.tokenizer is not None and (self.size or self.target or self.share or self.kind != "trim"):
            raise refused("tokenizer", "is one that exists; leave out kind, size, target and share")
        if self.kind != "trim" and self.size is None:
            raise refused("size", f"is needed by kind '{self.kind}'; give a number of tokens")
        for name in ("target", "share"):
            if hybrid != (getattr(self, name) is not None):
                raise refused(
                    name, "is needed by kind 'hybrid'" if hybrid else f"is not for kind '{self.kind}'; leave it out"
                )
        return self


class EmbeddingSection(Section):
    """A factorized token table: rows of `rank` numbers and one linear layer to the hidden size (ELECTRA's layout)."""

    rank: Units = key(
        ...,
        "rank of the factorized embedding table; a BERT encoder becomes an ELECTRA; width of a static student's table",
    )
    expand: bool = key(
        False, "save an ordinary BERT with a full table, for software without ELECTRA; its vectors differ a little"
    )


class StudentSection(Section):
    """The network that is trained and shipped: `model`, pruned to `layers`, or a fresh one from `config`."""

    one_of = ("model", "config")
    model: StudentModelName | None = key(None, "folder or hub id; 'teacher': the teacher's backbone")
    config: dict[str, Any] | None = key(None, "a fresh backbone: transformers config with 'model_type'")
    tokenizer: FolderOrId | None = key(None, "only with 'config': folder or hub id; vocabulary may replace its tokens")
    revision: str | None = key(None, "branch, tag or commit of the hub")
    size: str | None = key(
        None,
        "parameters, such as 5M or 25%: sets layers, neurons, tokens and the numbers for each token (docs/sizes.md)",
    )
    layers: int | list[int] | LayersSection | None = key(
        None,
        "layers to keep, counted from 0; a number keeps that many, evenly spread; or count and choose; the number 0 "
        "makes a static student, the mean of learned token vectors",
    )
    reinitialize: int | None = key(None, "start the last n kept layers from random weights, by seed", gt=0)
    intermediate_size: Units | None = key(
        None, "neurons to keep in each feed-forward layer; the corpus's texts decide which matter most"
    )
    pooling: Pooling | None = key(None, "how token states become one vector; by default as the model states, else mean")
    max_length: Tokens | None = key(
        None, "tokens; by default the teacher's limit, or the model's own limit if it is smaller"
    )
    attention: Literal["bidirectional"] | None = key(
        None,
        "lifts a decoder's causal mask, also in the saved model; by default with 'teacher' if the teacher's is lifted",
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] | Literal["own"] | None = key(
        None,
        "every dropout rate of the backbone; 'own': as in its configuration; by default 0 if the student learns only "
        "the teacher's vectors, else 'own'",
    )
    dense: Literal["auto", "always", "keep", "fold", "never"] = key(
        "auto",
        "what follows the pooling; 'always': a new linear layer into the teacher's space, 'keep': the model's own "
        "modules, 'fold': the same with neighbouring linear layers as one matrix; 'auto': 'fold' for layers of the "
        "teacher, 'always' for another model or other widths",
    )
    built_in_prompt: str | None = key(
        None,
        "a prompt of the teacher by its name (query, document, STS), or its words: for texts without a prompt the "
        "student gives the teacher's vectors with this prompt; it has no prompts of its own",
        min_length=1,
    )
    dims: list[Units] | None = key(
        None,
        "dimensions to which you can cut the vectors, from the student's dim down, such as [384, 256, 128]; all are "
        "trained (Matryoshka)",
    )
    start: Literal["auto", "ridge", "random"] = key(
        "auto",
        "new linear layers to the teacher's vectors: 'auto' fits the student's by ridge regression, 'ridge' also the "
        "method's, 'random' fits no layer",
    )
    experts: ExpertsSection | None = None
    head: HeadSection | None = key(None, "only with a task")
    vocabulary: VocabularySection | None = None
    embedding: EmbeddingSection | None = None
    lora: LoraSection | None = None
    trust_remote_code: bool = key(False, "run code that comes with the model")

    @model_validator(mode="after")
    def check_fresh_student(self) -> StudentSection:
        """Refuse keys that contradict each other."""
        if self.model is not None:
            self.refuse_unread(["tokenizer"], "a student with 'model'")
        if self.config is not None and self.tokenizer is None:
            raise ValueError("a fresh student ('config') needs a 'tokenizer'")
        if self.config is not None and self.dense in ("keep", "fold"):
            raise ValueError(
                f"a fresh student ('config') has no modules to keep ('dense: {self.dense}'); name a 'model'"
            )
        if self.config is not None and self.embedding is not None:
            raise refused("embedding", "is for a 'model'; set embedding_size in 'config' of model_type electra")
        if self.config is not None and self.intermediate_size is not None:
            raise refused("intermediate_size", "is for a 'model'; set it in 'config'")
        if self.size is not None:
            for name in ("config", "layers", "intermediate_size", "vocabulary", "embedding"):
                is_allowed = name == "layers" and self.is_static  # a static student of this size
                if getattr(self, name) is not None and not is_allowed:
                    raise refused("size", f"decides on {name}, which is set as well; leave out one of the two")
        if self.lora is not None and self.intermediate_size is not None:
            raise refused(
                "intermediate_size", "changes the weights that the adapters of 'lora' belong to; leave out one"
            )
        if self.is_static:
            self.check_static()
        if self.chooses and (self.config is not None or self.reinitialize is not None):
            weights_key = "config" if self.config is not None else "reinitialize"
            raise refused(
                "layers.choose", f"'best' compares trained layers; leave out {weights_key}, or choose 'spread'"
            )
        return self

    @model_validator(mode="after")
    def check_dims(self) -> StudentSection:
        """Refuse dims that are not in descending order, each once."""
        if self.dims is not None and (not self.dims or self.dims != sorted({*self.dims}, reverse=True)):
            raise refused("dims", f"found {self.dims}; give them in descending order, each once: [384, 256, 128, 64]")
        return self

    def check_static(self) -> None:
        """Refuse what a static student, which has no layers, cannot have."""
        for name in ("config", "reinitialize", "intermediate_size", "attention", "experts", "lora"):
            if getattr(self, name) is not None:
                raise refused(name, "is not for a static student (layers: 0); leave it out")
        if self.pooling not in (None, "mean"):
            raise refused("pooling", f"found '{self.pooling}'; the vector of a static student (layers: 0) is a mean")
        if self.dropout not in (None, "own", 0):
            raise refused("dropout", "is not for a static student (layers: 0); leave it out")
        if self.embedding is not None and self.embedding.expand:
            raise refused("embedding.expand", "is not for a static student (layers: 0); leave it out")

    @property
    def is_static(self) -> bool:
        """Whether the student is a table of token vectors, without any layer."""
        return isinstance(self.layers, int) and self.layers == 0

    @property
    def chooses(self) -> bool:
        """Whether the layers are chosen by their distance to the teacher."""
        return isinstance(self.layers, LayersSection) and self.layers.choose == "best"

    @property
    def reads_texts(self) -> bool:
        """Whether the untrained student is fitted to texts of the corpus.

        One whose layers are still to be chosen is not: it is built again, with these layers.
        """
        if self.chooses:
            return False
        return self.embedding is not None or self.intermediate_size is not None or self.is_static
