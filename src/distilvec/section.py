"""What every section of a recipe is (schema.py, schema_train.py)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of a recipe. Unknown keys are refused; values are read strictly enough to catch typing errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
