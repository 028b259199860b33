"""The models that a run has in memory and uses again, so that it loads each of them once."""

from __future__ import annotations

from dataclasses import dataclass

from sentence_transformers import SentenceTransformer

from distilvec.config.schema import TeacherSection
from distilvec.teachers.model_embedder import ModelEmbedder


@dataclass
class LoadedModels:
    """Models in memory; None for those that have to be loaded or built.

    teacher: loaded for its description, and not used yet; `section` is the recipe's, with its precision.
    untrained: the student, built for its description, and not used yet; its weights are mapped (models/weights.py).
    start: a copy of the student from before its training, mapped as well, and then on any device.
    student: the best student, loaded from the run folder, on any device.
    """

    teacher: ModelEmbedder | None = None
    section: TeacherSection | None = None
    untrained: SentenceTransformer | None = None
    start: SentenceTransformer | None = None
    student: SentenceTransformer | None = None

    def take_teacher(self, section: TeacherSection) -> ModelEmbedder | None:
        """Return the teacher of this section if it is loaded; the caller frees its memory."""
        teacher, self.teacher = self.teacher, None
        if teacher is None or self.section == section:
            return teacher
        with teacher:  # another precision was chosen, as its cache was begun
            return None

    def take_untrained(self) -> SentenceTransformer | None:
        """Return the untrained student if it is built; the caller may change it."""
        student, self.untrained = self.untrained, None
        return student

    def release_untaken(self) -> None:
        """Free the models that were loaded for a description and that nobody needs."""
        self.untrained = None
        if self.teacher is not None:
            with self.teacher:
                self.teacher = None
