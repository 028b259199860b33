"""`distilvec finetune`: a teacher that learns a labelled task."""
