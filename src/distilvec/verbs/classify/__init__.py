"""The verb `classify`: from a file of labelled texts to a small classifier, with its accuracy on held-out rows.

    split.py     training, validation and test rows
    recipes.py   the two runs: the teacher learns the labels, the student learns from both
    classify.py  distilvec.classify
    result.py    what it returns: the classifier and how good it is
    command.py   distilvec classify

The rows are read in data/labelled_rows.py. It and split.py import no torch: a wrong file or column is refused at once.
"""
